"""BabyAI with k attempts per level, on minigrid itself; minigrid's own bot solves levels."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX
from minigrid.utils.baby_ai_bot import BabyAIBot
from minigrid.wrappers import FullyObsWrapper, RGBImgPartialObsWrapper

from amago.envs import AMAGOEnv
from amago.envs.builtin.babyai import (
    ALL_BABYAI_TASKS,
    BANNED_BABYAI_TASKS,
    IMAGE_SHAPES,
    MultitaskMetaBabyAI,
    babyai_ids,
)
from amago.envs.metrics import extract_metrics
from amago.envs.vector import make_vector_env

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)


def go_to(**changes) -> MultitaskMetaBabyAI:
    env = MultitaskMetaBabyAI(**{"task_names": ["GoToRedBallGrey-v0"], **changes})
    env.reset(seed=0)
    return env


def level(env: MultitaskMetaBabyAI):
    return env._env.unwrapped


def solve(env: MultitaskMetaBabyAI) -> list[tuple]:
    """The results of the steps in which minigrid's bot solves the attempt that has just begun."""
    bot, action, results = BabyAIBot(level(env)), None, []
    while not results or results[-1][1] == 0.0:
        action = bot.replan(action)
        results.append(env.step(int(action)))
    return results


def same(first: dict, second: dict) -> bool:
    return all(np.array_equal(first[key], second[key]) for key in ("image", "mission", "extra"))


def test_68_of_minigrid_s_96_tasks_are_kept_in_their_order():
    assert len(babyai_ids()) == 96
    assert len(ALL_BABYAI_TASKS) == 68
    assert len(BANNED_BABYAI_TASKS) == 14
    assert [env_id for env_id in gym.registry if env_id in ALL_BABYAI_TASKS] == ALL_BABYAI_TASKS
    assert not any(banned in name for name in ALL_BABYAI_TASKS for banned in BANNED_BABYAI_TASKS)
    assert "BabyAI-GoToObjS6-v1" in ALL_BABYAI_TASKS


@pytest.mark.parametrize("observation_type", IMAGE_SHAPES)
def test_it_is_a_valid_gymnasium_environment(observation_type):
    check_env(
        MultitaskMetaBabyAI(["GoToLocal-v0"], observation_type=observation_type), skip_render_check=True
    )


@pytest.mark.parametrize("name", ALL_BABYAI_TASKS)
def test_missions_and_maps_of_every_kept_task_fit(name):
    env = MultitaskMetaBabyAI([name], observation_type="full-grid")
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert observation in env.observation_space
        assert 1 not in observation["mission"]
        words = [env.WORDS[token - 2] for token in observation["mission"] if token]
        assert " ".join(words) == level(env).mission
        assert 16 <= level(env).max_steps <= 1080


def test_there_are_29_words_and_a_mission_is_padded_with_zeros():
    assert len(MultitaskMetaBabyAI.WORDS) == 29
    assert (MultitaskMetaBabyAI.WORDS[0], MultitaskMetaBabyAI.WORDS[28]) == ("a", "your")
    env = go_to()
    observation, _ = env.reset(seed=0)
    assert level(env).mission == "go to the red ball"
    assert observation["mission"].tolist() == [10, 26, 24, 22, 3, 0, 0, 0, 0]
    assert observation["mission"].dtype == np.int32


def test_the_partial_grid_is_minigrid_s_view():
    env = go_to()
    for action in (LEFT, FORWARD, FORWARD, RIGHT):
        observation, *_ = env.step(action)
        np.testing.assert_array_equal(observation["image"], level(env).gen_obs()["image"])
        assert observation["image"].dtype == np.uint8


def test_the_full_grid_is_minigrid_s_map_padded_with_zeros():
    env = go_to(observation_type="full-grid")
    observation, *_ = env.step(FORWARD)
    theirs = FullyObsWrapper(env._env).observation({})["image"]
    width, height = theirs.shape[:2]
    assert (width, height) == (level(env).width, level(env).height)
    np.testing.assert_array_equal(observation["image"][:width, :height], theirs)
    assert observation["image"].sum() == theirs.sum()
    agent = observation["image"][tuple(level(env).agent_pos)]
    assert agent.tolist() == [OBJECT_TO_IDX["agent"], COLOR_TO_IDX["red"], level(env).agent_dir]


def test_the_partial_image_is_minigrid_s_with_9_pixels_per_cell():
    env = go_to(observation_type="partial-image")
    observation, *_ = env.step(FORWARD)
    theirs = RGBImgPartialObsWrapper(env._env, tile_size=9).observation({})["image"]
    np.testing.assert_array_equal(observation["image"], theirs)


@pytest.mark.parametrize("name", ["GoToRedBallGrey-v0", "GoToObjMaze-v0"])
def test_the_full_image_is_the_map_resized(name):
    env = go_to(task_names=[name], observation_type="full-image")
    observation, *_ = env.step(FORWARD)
    frame = level(env).get_frame(tile_size=8)
    assert frame.shape != (63, 63, 3)
    assert observation["image"].shape == (63, 63, 3)
    np.testing.assert_allclose(observation["image"].mean((0, 1)), frame.mean((0, 1)), atol=2.0)


def test_extra_has_the_direction_and_the_attempt():
    env = go_to(k_episodes=4)
    for action in (LEFT, LEFT, RIGHT, FORWARD):
        observation, *_ = env.step(action)
        assert observation["extra"][:4].tolist() == np.eye(4)[level(env).agent_dir].tolist()
        assert observation["extra"][4] == 0.25
        assert observation["extra"].dtype == np.float32


def test_attempts_repeat_the_level_after_an_extra_step_and_report_success():
    env = go_to(k_episodes=3)
    first, _ = env.reset(seed=5)
    for attempt in (1, 2, 3):
        assert env.current_episode == attempt
        mission, max_steps = level(env).mission, level(env).max_steps
        results = solve(env)
        observation, reward, terminated, truncated, info = results[-1]
        assert reward == pytest.approx(1 - 0.9 * len(results) / max_steps)
        assert [result[1] for result in results[:-1]] == [0.0] * (len(results) - 1)
        assert not any(result[4] for result in results[:-1])
        assert extract_metrics(info) == {f"Episode {attempt} Success": 1.0}
        assert (terminated, truncated) == (attempt == 3, False)
        assert observation["extra"][4] == pytest.approx((attempt + 1) / 3)
        assert observation in env.observation_space
        if attempt < 3:
            observation, reward, terminated, truncated, info = env.step(PICK_UP)
            assert (reward, terminated, truncated, info) == (0.0, False, False, {})
            assert level(env).mission == mission
            np.testing.assert_array_equal(observation["image"], first["image"])
            np.testing.assert_array_equal(observation["extra"][:4], first["extra"][:4])
    with pytest.raises(RuntimeError, match="reset"):
        env.step(LEFT)


def test_a_timeout_ends_the_attempt_without_success():
    env = go_to(k_episodes=2)
    for attempt in (1, 2):
        for step in range(level(env).max_steps):
            _, reward, terminated, truncated, info = env.step(LEFT)
            assert reward == 0.0
            assert extract_metrics(info) == (
                {f"Episode {attempt} Success": 0.0} if step == level(env).max_steps - 1 else {}
            )
        assert (terminated, truncated) == (attempt == 2, False)
        if attempt == 1:
            env.step(LEFT)


def test_a_seed_fixes_task_and_level_and_without_a_seed_they_are_fresh():
    env, other = (MultitaskMetaBabyAI(ALL_BABYAI_TASKS[:10]) for _ in range(2))

    def first(env, seed):
        return env.reset(seed=seed)[0], env.current_task

    for seed in (3, None, None):  # the streams go on alike
        (mine, my_task), (theirs, their_task) = first(env, seed), first(other, seed)
        assert my_task == their_task
        assert same(mine, theirs)
    drawn = [(env.reset()[0]["image"].tobytes(), env.current_task) for _ in range(20)]
    assert len(set(drawn)) > 15
    assert len({task for _, task in drawn}) > 4


def test_levels_come_from_the_seed_range_with_both_bounds():
    env = MultitaskMetaBabyAI(["GoToLocal-v0"], seed_range=(7, 9))
    levels = {env.reset()[0]["image"].tobytes() for _ in range(40)}
    theirs = gym.make("BabyAI-GoToLocal-v0")
    assert levels == {theirs.reset(seed=seed)[0]["image"].tobytes() for seed in (7, 8, 9)}


def test_task_names_are_kept_without_their_prefix_and_name_the_environment():
    env = MultitaskMetaBabyAI(["BabyAI-GoToLocal-v0", "GoToObj-v0"])
    assert env.task_names == ["GoToLocal-v0", "GoToObj-v0"]
    names = set()
    for seed in range(10):
        env.reset(seed=seed)
        assert env.current_task == AMAGOEnv(env).env_name
        names.add(env.current_task)
    assert names == {"GoToLocal-v0", "GoToObj-v0"}
    assert MultitaskMetaBabyAI("GoToLocal-v0").task_names == ["GoToLocal-v0"]


def test_environments_are_built_when_their_task_is_drawn_and_kept():
    env = MultitaskMetaBabyAI(["GoToLocal-v0"])
    assert env._envs == {}
    env.reset()
    inner = env._env
    env.reset()
    assert env._env is inner


def test_a_subclass_may_add_to_the_observation_and_wrap_the_environment():
    class SeesCarrying(MultitaskMetaBabyAI):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.observation_space["carrying"] = gym.spaces.Box(0, 1, (1,), np.float32)

        def sample_new_env(self, env_name):
            return gym.wrappers.TransformReward(super().sample_new_env(env_name), lambda reward: 10 * reward)

        def create_observation(self, raw_obs):
            carrying = self._env.unwrapped.carrying is not None
            return {**super().create_observation(raw_obs), "carrying": np.array([carrying], np.float32)}

    env = SeesCarrying(["BabyAI-GoToObj-v0"])
    observation, _ = env.reset(seed=0)
    assert observation["carrying"] == 0
    assert solve(env)[-1][1] > 1
    assert AMAGOEnv(env).reset(seed=0)[0].obs["carrying"].shape == (1, 1)


def test_rejected_levels_are_not_printed(capsys):
    env = MultitaskMetaBabyAI(["GoTo-v0", "Pickup-v0", "Open-v0"])
    for seed in range(30):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""


def test_render_returns_an_image():
    assert go_to(render_mode="rgb_array").render().shape[2] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task_names": []}, "task_names is empty"),
        ({"task_names": ["GoToLocl-v0"]}, "'GoToLocl-v0', .* mean 'BabyAI-GoToLocal-v0'"),
        ({"task_names": ["GoToObjS6-v0"]}, "mean 'BabyAI-GoToObjS6-v1'"),
        ({"observation_type": "pixels"}, "observation_type must be one of partial-grid"),
        ({"seed_range": (5, 4)}, r"seed_range must be \(lowest, highest\)"),
        ({"k_episodes": 0}, "k_episodes"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        go_to(**changes)


def test_a_mission_that_is_too_long_and_an_unknown_action_are_refused():
    with pytest.raises(ValueError, match=r"GoToSeq-v0 has \d+ words, more than 9"):
        [go_to(task_names=["GoToSeq-v0"]) for _ in range(20)]
    with pytest.raises(ValueError, match="7"):
        go_to().step(7)


def test_it_runs_in_a_vector_environment():
    envs = make_vector_env(
        [lambda: AMAGOEnv(MultitaskMetaBabyAI(["GoToObj-v0"], k_episodes=1))] * 2, env_mode="sync", seed=0
    )
    inputs = envs.reset()
    assert inputs.obs["image"].shape == (2, 7, 7, 3)
    assert inputs.obs["mission"].dtype == np.int32
    metrics = [metric for _ in range(64) for metric in envs.step(np.zeros((2, 1), np.int64)).metrics]
    assert metrics == [(0, {"Episode 1 Success": 0.0}), (1, {"Episode 1 Success": 0.0})]
    envs.close()


@pytest.mark.parametrize("observation_type", ["partial-grid", "partial-image"])
def test_an_agent_trains_on_it(short_training, observation_type):
    def make():
        return AMAGOEnv(MultitaskMetaBabyAI(["GoToObj-v0"], observation_type=observation_type))

    experiment = short_training(make)
    metrics = experiment.evaluate_test(make, timesteps=130)
    assert 0 <= metrics["Average Episode 1 Success in GoToObj-v0"] <= 1


def test_a_single_task_of_minigrid_has_its_mission_as_tokens():
    env = AMAGOEnv(gym.make("BabyAI-GoToLocal-v0"))
    tokens = set()
    for seed in range(10):
        timestep, _ = env.reset(seed=seed)
        assert timestep.obs["image"].shape == (1, 7, 7, 3)
        assert timestep.obs["mission"].dtype.kind in "iu"
        assert timestep.obs["mission"][0] in env.observation_space["mission"]
        tokens.add(tuple(timestep.obs["mission"][0].tolist()))
    assert len(tokens) > 4
