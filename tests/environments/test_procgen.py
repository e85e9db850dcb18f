"""Procgen games on procgen2 without gym, on numpy 2: two attempts at a level, rewards, levels and seeds."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs import AMAGOEnv
from amago.envs.builtin.catalog import CATALOG
from amago.envs.builtin.procgen_envs import ALL_PROCGEN_GAMES, ProcgenAMAGO, TwoAttemptMTProcgen
from amago.envs.vector import make_vector_env

RIGHT, RIGHT_UP = 7, 8
SUCCESS = "AMAGO_LOG_METRIC Episode {} Success"


def episode(env: TwoAttemptMTProcgen, seed: int | None, actions_seed: int = 0) -> list[tuple]:
    """(observation, reward, terminated, truncated, info) of every step, after the first observation."""
    rng = np.random.default_rng(actions_seed)
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, False, False, info)]
    while not steps[-1][2]:
        # mostly to the right, where most games have their goal
        action = int(rng.choice([RIGHT, RIGHT_UP, int(rng.integers(15))]))
        steps.append(env.step(action))
    return steps


def shown(steps: list[tuple]) -> list[tuple]:
    return [(observation.tobytes(), *rest) for observation, *rest in steps]


@pytest.mark.parametrize("game", ["coinrun", "maze"])
def test_it_is_a_valid_gymnasium_environment(game):
    check_env(TwoAttemptMTProcgen([game], "easy"), skip_render_check=True)


def test_gym_is_not_imported():
    code = (
        "import sys; from amago.envs.builtin.procgen_envs import TwoAttemptMTProcgen as T; "
        "T(['maze'], 'easy').reset(); assert not {'gym', 'procgen'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_two_attempts_at_one_level_with_a_step_between_them():
    steps = episode(TwoAttemptMTProcgen(["leaper"], "easy"), seed=0)
    ends = [i for i, step in enumerate(steps) if any("Success" in key for key in step[4])]
    first, second = ends
    assert second == len(steps) - 1
    assert [step[2:4] for step in steps] == [(False, False)] * second + [(True, True)]
    observation, reward, *_, info = steps[first + 1]
    assert (reward, info) == (0.0, {"soft_reset": True})
    np.testing.assert_array_equal(observation, steps[first][0])
    assert [step[4] for i, step in enumerate(steps[1:], 1) if i not in (first, first + 1, second)] == [{}] * (
        len(steps) - 4
    )


def test_the_second_attempt_begins_like_the_first_and_is_marked():
    steps = episode(TwoAttemptMTProcgen(["coinrun"], "easy"), seed=0)
    first_end = next(i for i, step in enumerate(steps) if SUCCESS.format(1) in step[4])
    mark = np.zeros((64, 64), bool)
    mark[1:5, 1:5] = True
    for i, (observation, *_) in enumerate(steps):
        assert (observation[mark].max() == 0) == (i >= first_end)
    np.testing.assert_array_equal(steps[first_end][0][~mark], steps[0][0][~mark])


def test_an_observation_is_not_changed_by_later_steps():
    env = TwoAttemptMTProcgen(["coinrun"], "easy")
    observation, _ = env.reset(seed=0)
    before = observation.copy()
    episode(env, seed=None)
    np.testing.assert_array_equal(observation, before)


def test_the_metric_of_an_attempt_is_whether_the_level_was_completed():
    env = TwoAttemptMTProcgen(["leaper", "coinrun"], "easy")
    successes = []
    for seed in range(12):
        for _, reward, _, _, info in episode(env, seed, seed):
            for number in (1, 2):
                if SUCCESS.format(number) in info:
                    successes.append(info[SUCCESS.format(number)])
                    assert successes[-1] == float(reward > 0)
    assert len(successes) == 24
    assert set(successes) == {0.0, 1.0}


def test_rewards_are_scaled_by_game():
    plain, scaled, other = (
        [
            step[1]
            for step in episode(TwoAttemptMTProcgen(["fruitbot"], "easy", scales), seed=1, actions_seed=3)
        ]
        for scales in ({}, {"fruitbot": 0.5}, {"coinrun": 7.0})
    )
    assert max(plain) > 0
    assert other == plain
    assert scaled == [reward * 0.5 for reward in plain]


def test_games_and_levels_are_drawn_within_the_range_and_told_by_the_reset():
    env = TwoAttemptMTProcgen(["coinrun", "maze", "leaper"], "easy", seed_range=(5, 7))
    drawn = [env.reset(seed=0)[1], *(env.reset()[1] for _ in range(60))]
    assert {info["game"] for info in drawn} == {"coinrun", "maze", "leaper"}
    assert {info["level"] for info in drawn} == {5, 6, 7}
    assert drawn[-1] == {"game": env.current_game, "level": env.current_level}


def test_the_level_decides_what_is_seen():
    def first_frame(level: int) -> bytes:
        return TwoAttemptMTProcgen(["maze"], "easy", seed_range=(level, level)).reset()[0].tobytes()

    assert first_frame(3) == first_frame(3)
    assert first_frame(3) != first_frame(4)


@pytest.mark.parametrize("game", ["coinrun", "bossfight"])  # bossfight has chance within a level
def test_the_seed_decides_the_episode(game):
    make = lambda: TwoAttemptMTProcgen([game], "easy")  # noqa: E731
    assert shown(episode(make(), seed=3)) == shown(episode(make(), seed=3))
    assert shown(episode(make(), seed=3)) != shown(episode(make(), seed=4))
    assert shown(episode(make(), seed=None)) != shown(episode(make(), seed=None))


def test_every_game_runs_in_every_mode():
    assert len(ALL_PROCGEN_GAMES) == 16
    made = []
    for mode in ("easy", "hard", "memory-hard"):
        for game in ALL_PROCGEN_GAMES:
            env = TwoAttemptMTProcgen([game], mode)
            env.reset(seed=0)
            env.step(RIGHT)
            made.append(env._procgen.options["distribution_mode"])
            env.close()
    assert made == [0] * 16 + [1] * 16 + [10] * 6 + [1] * 10  # Procgen's numbers: easy, hard, memory


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"games": ["pong"]}, "pong"),
        ({"games": []}, "games"),
        ({"distribution_mode": "memory"}, "memory-hard"),
        ({"reward_scales": {"coinrum": 2.0}}, "coinrum"),
        ({"seed_range": (5, 4)}, "seed_range"),
        ({"seed_range": (-1, 4)}, "seed_range"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        TwoAttemptMTProcgen(**{"games": ["coinrun"], "distribution_mode": "easy", **arguments})


def test_steps_need_a_running_episode_and_a_known_action():
    env = TwoAttemptMTProcgen(["leaper"], "easy")
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ValueError, match="15"):
        env.step(15)
    episode(env, seed=0)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)


def test_only_procgen_is_wrapped():
    with pytest.raises(TypeError, match="TwoAttemptMTProcgen"):
        ProcgenAMAGO(gym.make("CartPole-v1"))


def make_env() -> AMAGOEnv:
    return ProcgenAMAGO(TwoAttemptMTProcgen(["leaper", "coinrun"], "easy"))


def test_vector_environments_report_games_and_metrics():
    observed = []
    for env_mode in ("sync", "async"):
        names, metrics = set(), set()
        with make_vector_env([make_env] * 2, env_mode=env_mode, seed=0) as envs:
            envs.reset()
            for _ in range(1500):
                step = envs.step(np.full((2, 1), RIGHT_UP))
                names |= set(step.env_names)
                metrics |= {name for _, reported in step.metrics for name in reported}
            observed.append(step.inputs.obs["observation"].copy())
        assert names == {"leaper", "coinrun"}
        assert metrics == {"Episode 1 Success", "Episode 2 Success"}
    assert observed[0].shape == (2, 64, 64, 3)
    np.testing.assert_array_equal(*observed)


def test_an_agent_trains(short_training):
    experiment = short_training(make_env)
    metrics = experiment.evaluate_test(make_env, timesteps=2100)
    assert any(name.startswith("Average Episode 2 Success in") for name in metrics)


def test_the_command_line_needs_no_gym(monkeypatch):
    monkeypatch.setitem(sys.modules, "gym", None)
    factory, wrapper = CATALOG["Procgen"].load()
    assert wrapper(factory(["maze"], "easy")).env_name == "maze"
