"""Console games on stable-retro, whose wheel has one game: Airstriker on the Genesis."""

import gin
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs import AMAGOEnv
from amago.envs.builtin.ale_retro import RetroAMAGOWrapper, RetroArcade
from amago.envs.builtin.retro import BORDER_COLORS
from amago.envs.vector import make_vector_env

GAME = "Airstriker-Genesis-v0"
STARTS = {GAME: ["Level1"]}
GENESIS_BLUE = (8, 8, 201)


@pytest.fixture
def arcade():
    """Makes a RetroArcade of the game, and closes it: a process can have only one emulator."""
    made = []

    def make(**arguments) -> RetroArcade:
        for env in made:
            env.close()
        made.append(RetroArcade(**{"game_start_dict": STARTS, **arguments}))
        return made[-1]

    yield make
    for env in made:
        env.close()


def play(env: RetroArcade, seed: int, steps: int = 12) -> list[tuple]:
    env.action_space.seed(seed)
    played = [env.reset(seed=0)[0].tobytes()]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        played.append((observation.tobytes(), reward, terminated, truncated, info))
    return played


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (3, 84, 84)),
        ({"channels_last": True, "resolution": (40, 60)}, (40, 60, 3)),
        ({"use_discrete_actions": True}, (3, 84, 84)),
    ],
)
def test_it_is_a_valid_gymnasium_environment(arcade, arguments, shape):
    env = arcade(**arguments)
    assert env.observation_space == gym.spaces.Box(0, 255, shape, np.uint8)
    check_env(env, skip_render_check=True)


def test_a_border_of_two_pixels_has_the_colour_of_the_console(arcade):
    env = arcade(channels_last=True)
    env.reset(seed=0)
    frame = env.step(np.zeros(12, np.int8))[0]
    inside = np.zeros((84, 84), bool)
    inside[2:-2, 2:-2] = True
    assert {tuple(color) for color in frame[~inside].tolist()} == {GENESIS_BLUE}
    assert len({tuple(color) for color in frame[inside].tolist()}) > 10
    assert set(BORDER_COLORS["Gb"]) == set(BORDER_COLORS["GameBoy"])


def test_channels_are_the_first_axis_by_default(arcade):
    last = arcade(channels_last=True).reset(seed=0)[0]
    first = arcade().reset(seed=0)[0]
    np.testing.assert_array_equal(first, last.transpose(2, 0, 1))


def test_actions_are_twelve_buttons_or_all_combinations_that_the_console_uses(arcade):
    assert arcade().action_space == gym.spaces.MultiBinary(12)
    assert arcade(use_discrete_actions=True).action_space == gym.spaces.Discrete(126)


def test_a_step_repeats_the_action_and_sums_the_rewards(arcade):
    buttons = np.random.default_rng(0).integers(2, size=(100, 12), dtype=np.int8)

    def total_and_memory(frame_skip: int) -> tuple[float, dict]:
        env = arcade(frame_skip=frame_skip)
        env.reset()
        results = [env.step(pressed) for pressed in buttons for _ in range(8 // frame_skip)]
        return sum(result[1] for result in results), results[-1][4]

    total, memory = total_and_memory(frame_skip=1)
    assert total_and_memory(frame_skip=8) == (total, memory)
    assert total == memory["score"] > 0


def test_the_reset_names_the_game_and_a_step_shows_its_memory(arcade):
    env = arcade()
    assert env.rom_name == f"{GAME}_Level1"
    _, info = env.reset()
    assert info["game"] == GAME
    assert set(env.step(env.action_space.sample())[4]) == {"gameover", "lives", "score"}


def test_the_time_limit_truncates_counted_in_frames(arcade):
    assert arcade().time_limit == 9000
    env = arcade(time_limit_minutes=1 / 60)  # 60 frames
    ends = [step[2:4] for step in play(env, seed=0, steps=8)[1:]]
    assert ends == [(False, False)] * 7 + [(False, True)]


def test_the_end_of_the_game_terminates(arcade):
    env = arcade(frame_skip=60)
    env.reset()
    ends = []
    while not any(ends[-1:]):
        *_, terminated, truncated, info = env.step(np.zeros(12, np.int8))
        assert not truncated
        ends.append(terminated)
    assert info["lives"] == 0


def test_an_emulator_that_is_kept_plays_as_a_new_one(arcade):
    env = arcade()
    first = play(env, seed=1)
    emulator = env._emulator
    again = play(env, seed=1)
    assert env._emulator is emulator
    assert again == first
    assert play(env, seed=2) != first
    assert play(arcade(), seed=1) == first


def test_the_emulator_starts_with_the_reset_and_a_closed_one_starts_again(arcade):
    RetroArcade(STARTS)  # would keep the next one from starting
    env = arcade()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(12, np.int8))
    env.reset()
    other = RetroArcade(STARTS)
    with pytest.raises(RuntimeError, match="multiple emulator"):
        other.reset()
    env.close()
    other.reset()
    other.close()


def test_start_states_are_drawn_by_the_seed(arcade):
    env = arcade(game_start_dict={GAME: ["Level1", "Level1.state"]})
    drawn = set()
    for seed in range(8):
        env.reset(seed=seed)
        drawn.add(env._start)
        assert env.rom_name == f"{GAME}_Level1"
        start = env._start
        env.reset(seed=seed)
        assert env._start == start
    assert len(drawn) == 2


def test_the_screen_is_rendered_in_its_own_resolution(arcade):
    env = arcade()
    env.reset()
    assert env.render().shape == (224, 320, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"game_start_dict": {}}, ValueError, "game_start_dict"),
        ({"game_start_dict": {GAME: ["Level7"]}}, ValueError, "Level7.*Level1"),
        ({"game_start_dict": {"SonicTheHedgehog-Genesis-v0": ["x"]}}, FileNotFoundError, "Sonic"),
        ({"frame_skip": 0}, ValueError, "frame_skip"),
        ({"time_limit_minutes": 0}, ValueError, "time_limit_minutes"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments, error, named):
    with pytest.raises(error, match=named):
        RetroArcade(**{"game_start_dict": STARTS, **arguments})


def test_the_console_is_that_of_the_rom_and_those_without_a_colour_are_refused(tmp_path):
    import stable_retro

    roms = {"Small-Nes-v0": "rom.nes", "Large-N64-v0": "rom.n64", "Other-Saturn-v0": "rom.chd"}
    for game, rom in roms.items():
        (tmp_path / game).mkdir()
        for name in (rom, "Start.state", "data.json", "scenario.json"):
            (tmp_path / game / name).write_text("{}")
        (tmp_path / game / "rom.sha").write_text("0" * 40)
    stable_retro.data.Integrations.add_custom_path(str(tmp_path))
    try:
        stable_retro.data.add_integrations(stable_retro.data.Integrations.CUSTOM_ONLY)
        starts = {"Small-Nes-v0": ["Start"]}
        assert RetroArcade(starts, use_discrete_actions=True).action_space == gym.spaces.Discrete(36)
        with pytest.raises(ValueError, match="equally many"):
            RetroArcade({**starts, **STARTS}, use_discrete_actions=True)
        RetroArcade({**starts, **STARTS})
        for game in ("Large-N64-v0", "Other-Saturn-v0"):
            with pytest.raises(ValueError, match=game):
                RetroArcade({game: ["Start"]})
    finally:
        stable_retro.data.Integrations.clear_custom_paths()


def test_only_an_arcade_is_wrapped():
    with pytest.raises(TypeError, match="RetroArcade"):
        RetroAMAGOWrapper(gym.make("CartPole-v1"))


def make_env() -> AMAGOEnv:
    return RetroAMAGOWrapper(RetroArcade(STARTS, time_limit_minutes=1 / 60))


def test_vector_environments_have_an_emulator_per_process():
    with make_vector_env([make_env] * 2, env_mode="async", envs_per_worker=1, seed=0) as envs:
        envs.reset()
        for _ in range(8):
            step = envs.step(np.ones((2, 12), np.int8))
        assert step.truncated.tolist() == [True, True]
        assert list(step.env_names) == [f"{GAME}_Level1"] * 2
        assert step.inputs.obs["observation"].shape == (2, 3, 84, 84)


def test_an_agent_trains(short_training):
    gin.bind_parameter("Agent.online_coeff", 0.0)  # samples of buttons carry no gradient
    gin.bind_parameter("Agent.offline_coeff", 1.0)
    experiment = short_training(make_env, env_mode="async", envs_per_worker=1)
    returns = experiment.evaluate_test(make_env, timesteps=10)
    assert returns[f"Average Total Return in {GAME}_Level1"] >= 0.0
