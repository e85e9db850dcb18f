"""The DeepMind Control Suite as gymnasium environments: observations, time limits, seeds, images."""

import os
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from dm_control import suite
from gymnasium.utils.env_checker import check_env

from amago.envs import AMAGOEnv
from amago.envs.builtin.dm_control_envs import DMControl
from amago.envs.vector import make_vector_env


def episode(env: DMControl, seed: int | None, steps: int = 30) -> list[tuple]:
    rng = np.random.default_rng(0)
    played = [(env.reset(seed=seed)[0].tolist(),)]
    for _ in range(steps):
        observation, *rest = env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        played.append((observation.tolist(), *rest))
    return played


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("name", ["cartpole-swingup", "fish-upright", "reacher-easy"])
def test_it_is_a_valid_gymnasium_environment(name, flat):
    check_env(DMControl(name, flat=flat), skip_render_check=True)


def test_every_task_can_be_made_and_stepped():
    for domain, task in suite.BENCHMARKING:
        env = DMControl(domain, task)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        observation, *_ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)


@pytest.mark.parametrize("name", ["dm_control/cheetah-run", "cheetah-run"])
def test_a_task_has_an_id(name):
    env = DMControl(name)
    assert env.observation_space.shape == DMControl("cheetah", "run").observation_space.shape == (17,)
    assert env.action_space == gym.spaces.Box(-1, 1, (6,), np.float32)
    assert AMAGOEnv(env).env_name == "cheetah-run"


def test_it_plays_as_the_suite_does():
    env = DMControl("cheetah", "run")
    theirs = suite.load("cheetah", "run")
    observation, _ = env.reset(seed=3)
    theirs.task.random.set_state(env._suite_env.task.random.get_state())
    # the state after the reset, so compare the second episode
    observation, _ = env.reset()
    timestep = theirs.reset()
    rng = np.random.default_rng(0)
    for _ in range(50):
        expected = np.concatenate([timestep.observation["position"], timestep.observation["velocity"]])
        np.testing.assert_array_equal(observation, expected.astype(np.float32))
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        observation, reward, *_ = env.step(action)
        timestep = theirs.step(action)
        assert reward == timestep.reward


def test_a_dict_observation_has_a_vector_for_each_quantity():
    env = DMControl("fish", "upright", flat=False)
    observation, _ = env.reset(seed=0)
    flat, _ = DMControl("fish", "upright").reset(seed=0)
    assert env.observation_space["upright"] == gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert set(observation) == {"joint_angles", "upright", "velocity"}
    np.testing.assert_array_equal(np.concatenate(list(observation.values())), flat)


def test_the_time_limit_truncates_and_is_that_of_the_task_by_default():
    env = DMControl("cartpole", "balance")
    ends = [step[2:4] for step in episode(env, seed=0, steps=1000)[1:]]
    assert ends == [(False, False)] * 999 + [(False, True)]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(1, np.float32))
    assert episode(DMControl("cartpole", "balance", time_limit=0.1), seed=0, steps=10)[-1][2:4] == (
        False,
        True,
    )


def test_an_action_repeat_sums_rewards_and_lengthens_the_step():
    single, threefold = DMControl("cartpole", "balance"), DMControl("cartpole", "balance", action_repeat=3)
    assert single.dt == pytest.approx(0.01)
    assert threefold.dt == pytest.approx(0.03)
    single.reset(seed=0)
    threefold.reset(seed=0)
    steps = 0
    truncated = False
    while not truncated:
        action = np.float32([0.3 * (-1) ** steps])
        rewards, terminated = 0.0, False
        for _ in range(3):
            expected, reward, terminated, truncated, _ = single.step(action)
            rewards += reward
            if truncated:
                break
        observation, reward, *ends, _ = threefold.step(action)
        np.testing.assert_array_equal(observation, expected)
        assert reward == rewards
        assert ends == [terminated, truncated]
        steps += 1
    assert steps == 334


def test_a_discount_of_zero_terminates():
    env = DMControl("lqr", "lqr_2_1")  # ends when it has come to rest
    env.reset(seed=0)
    physics = env._suite_env.physics
    with physics.reset_context():
        physics.data.qpos[:] = 0
        physics.data.qvel[:] = 0
    *_, terminated, truncated, _ = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated) == (True, False)


def test_unbounded_actions_are_refused_by_the_agents_environment():
    with pytest.raises(ValueError, match="unbounded"):
        AMAGOEnv(DMControl("lqr", "lqr_2_1"))


def test_the_seed_decides_the_episode_and_without_one_it_is_fresh():
    assert episode(DMControl("cheetah-run"), seed=1) == episode(DMControl("cheetah-run"), seed=1)
    assert episode(DMControl("cheetah-run"), seed=1) != episode(DMControl("cheetah-run"), seed=2)
    assert episode(DMControl("cheetah-run"), seed=None) != episode(DMControl("cheetah-run"), seed=None)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"domain": "cheetah", "task": "rum"}, "cheetah-run"),
        ({"domain": "cheetah-rum"}, "Did you mean 'cheetah-run'"),
        ({"domain": "cheetah"}, "cheetah-"),
        ({"domain": "cheetah-run", "action_repeat": 0}, "action_repeat"),
        ({"domain": "cheetah-run", "time_limit": 0.0}, "time_limit"),
        ({"domain": "cheetah-run", "resolution": (0, 84)}, "resolution"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        DMControl(**arguments)


IMAGES = """
import numpy as np
from amago.envs.builtin.dm_control_envs import DMControl
image, mixed = (DMControl("cheetah-run", pixels=True, resolution=(40, 60), flat=flat) for flat in (True, False))
last = DMControl("cheetah-run", pixels=True, channels_last=True, resolution=(40, 60), render_mode="rgb_array")
assert image.observation_space.shape == (3, 40, 60)
frame, _ = image.reset(seed=0)
assert image.observation_space.contains(frame)
assert len(np.unique(frame)) > 10
both, _ = mixed.reset(seed=0)
assert mixed.observation_space.contains(both)
assert set(both) == {"position", "velocity", "pixels"}
np.testing.assert_array_equal(both["pixels"], frame)
np.testing.assert_array_equal(last.reset(seed=0)[0].transpose(2, 0, 1), frame)
np.testing.assert_array_equal(last.render(), last.reset(seed=0)[0])
later, *_ = image.step(np.ones(6, np.float32))
assert not np.array_equal(later, frame)
print("rendered")
"""


def test_images_are_drawn_where_opengl_can_and_otherwise_the_error_has_the_remedy():
    """On MuJoCo's EGL: the images themselves if this machine has that library, else the message."""
    run = subprocess.run(
        [sys.executable, "-c", IMAGES],
        env={**os.environ, "MUJOCO_GL": "egl"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.stdout.strip() == "rendered" or "MUJOCO_GL" in run.stderr or "egl" in run.stderr.lower(), (
        run.stderr
    )


def test_without_opengl_the_error_has_the_remedy():
    code = (
        "from amago.envs.builtin.dm_control_envs import DMControl as D; D('cheetah-run', pixels=True).reset()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "MUJOCO_GL": "disable"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert "RuntimeError: OpenGL cannot draw images here" in run.stderr
    assert "set the environment variable MUJOCO_GL to egl" in run.stderr


def make_env() -> AMAGOEnv:
    return AMAGOEnv(DMControl("dm_control/cartpole-swingup", time_limit=0.1))


def test_vector_environments_step_it():
    observed = []
    for env_mode in ("sync", "async"):
        with make_vector_env([make_env] * 2, env_mode=env_mode, seed=0) as envs:
            envs.reset()
            for _ in range(10):
                step = envs.step(np.full((2, 1), 0.5, np.float32))
            assert step.truncated.tolist() == [True, True]
            observed.append(step.final_obs["observation"].copy())
    np.testing.assert_array_equal(*observed)


def test_an_agent_trains(short_training):
    experiment = short_training(make_env)
    metrics = experiment.evaluate_test(make_env, timesteps=10)
    assert 0.0 <= metrics["Average Total Return in cartpole-swingup"] <= 10.0
