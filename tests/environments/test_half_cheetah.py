"""HalfCheetah with velocity rewards, on MuJoCo itself."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.mujoco.half_cheetah_v4 import HalfCheetahEnv
from gymnasium.utils.env_checker import check_env

from amago.envs import AMAGOEnv
from amago.envs.builtin.half_cheetah_v4_vel import HalfCheetahV4_MetaVelocity, HalfCheetahV4LogVelocity
from amago.envs.metrics import extract_metrics
from amago.envs.vector import make_vector_env

STILL = np.zeros(6, np.float32)


class SlowOrFast(HalfCheetahV4_MetaVelocity):
    """A user's split of the tasks, with an argument of its own."""

    def __init__(self, fast: bool) -> None:
        self.fast = fast
        super().__init__(task_max_velocity=10.0)

    def sample_target_velocity(self) -> float:
        return self.np_random.uniform(5, 10) if self.fast else self.np_random.uniform(0, 5)


def actions(number: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (number, 6)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is")
@pytest.mark.parametrize("cls", [HalfCheetahV4LogVelocity, HalfCheetahV4_MetaVelocity])
def test_it_is_a_valid_gymnasium_environment(cls):
    check_env(cls(), skip_render_check=True)


def test_it_moves_as_gymnasium_s_half_cheetah_does():
    env, base = HalfCheetahV4LogVelocity(), HalfCheetahEnv()
    assert (
        env.observation_space == base.observation_space == gym.spaces.Box(-np.inf, np.inf, (17,), np.float64)
    )
    assert env.action_space == base.action_space
    assert env.dt == pytest.approx(0.05)
    np.testing.assert_array_equal(env.reset(seed=4)[0], base.reset(seed=4)[0])
    for action in actions(100):
        observation, reward, terminated, truncated, info = env.step(action)
        expected = base.step(action)
        np.testing.assert_array_equal(observation, expected[0])
        assert observation in env.observation_space
        assert reward == pytest.approx(expected[1], abs=1e-9)
        assert info == pytest.approx(expected[4], abs=1e-9)
        assert (terminated, truncated) == (False, False)


def test_the_weights_change_the_reward_and_x_can_be_observed():
    env = HalfCheetahV4LogVelocity(2.0, 0.5, exclude_current_positions_from_observation=False)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (18,)
    action = np.full(6, 0.5, np.float32)
    observation, reward, *_, info = env.step(action)
    assert observation[0] == info["x_position"]
    assert info["reward_ctrl"] == pytest.approx(-0.5 * 6 * 0.25)
    assert info["reward_run"] == pytest.approx(2.0 * info["x_velocity"])
    assert reward == pytest.approx(info["reward_run"] + info["reward_ctrl"])


def test_it_truncates_after_1000_steps_and_reports_velocities_then():
    env = HalfCheetahV4LogVelocity()
    env.reset(seed=0)
    steps = [env.step(action) for action in actions(1000)]
    assert [step[2:4] for step in steps] == [(False, False)] * 999 + [(False, True)]
    assert not any(extract_metrics(step[4]) for step in steps[:-1])
    velocities = [step[4]["x_velocity"] for step in steps]
    assert extract_metrics(steps[-1][4]) == pytest.approx(
        {
            "Mean Velocity": np.mean(velocities),
            "Max Velocity": np.max(velocities),
            "Avg. Last 50 Timestep Velocity": np.mean(velocities[-50:]),
        }
    )
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STILL)


def test_the_target_velocity_sets_the_reward_and_is_not_observed():
    env = HalfCheetahV4_MetaVelocity(velocity_reward_weight=2.0)
    observation, _ = env.reset(seed=0)
    assert observation.shape == (17,)
    for action in actions(1000):
        observation, reward, _, truncated, info = env.step(action)
        assert info["reward_run"] == pytest.approx(-2.0 * abs(info["x_velocity"] - env.target_velocity))
        assert info["reward_ctrl"] == pytest.approx(-0.05 * np.square(action).sum())
        assert reward == pytest.approx(info["reward_run"] + info["reward_ctrl"])
    assert truncated
    metrics = extract_metrics(info)
    assert len(metrics) == 4
    assert metrics["Target Velocity Error at Final 50 Timesteps"] == pytest.approx(
        abs(env.target_velocity - metrics["Avg. Last 50 Timestep Velocity"])
    )


def test_targets_are_drawn_from_the_range_at_construction_and_at_every_reset():
    env = HalfCheetahV4_MetaVelocity(task_min_velocity=1.0, task_max_velocity=2.0)
    targets = [env.target_velocity]
    for _ in range(200):
        env.reset()
        targets.append(env.target_velocity)
    assert len(set(targets)) == 201
    assert 1.0 <= min(targets) < 1.1 < 1.9 < max(targets) <= 2.0


def test_a_seed_fixes_posture_and_target_and_without_a_seed_they_are_fresh():
    def first(env, seed):
        observation, _ = env.reset(seed=seed)
        return [*observation, env.target_velocity]

    env, other = HalfCheetahV4_MetaVelocity(), HalfCheetahV4_MetaVelocity()
    assert first(env, 3) == first(other, 3)
    assert first(env, None) == first(other, None)
    assert first(env, 3)[-1] != first(env, 4)[-1]
    assert first(HalfCheetahV4_MetaVelocity(), None)[-1] != first(HalfCheetahV4_MetaVelocity(), None)[-1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize(
    "make", [lambda: HalfCheetahV4_MetaVelocity(0.2, 3.0, 1.0, 4.0), lambda: SlowOrFast(True)]
)
def test_copies_have_the_settings_of_the_original(copied, make):
    env = make()
    twin = copied(env)
    assert type(twin) is type(env)
    for name in ("velocity_reward_weight", "task_min_velocity", "task_max_velocity", "_ctrl_cost_weight"):
        assert getattr(twin, name) == getattr(env, name)
    assert twin.mujoco_env is not env.mujoco_env
    np.testing.assert_array_equal(env.reset(seed=1)[0], twin.reset(seed=1)[0])
    assert twin.target_velocity == env.target_velocity
    np.testing.assert_array_equal(env.step(STILL + 1)[0], twin.step(STILL + 1)[0])


def test_subclasses_split_the_targets_and_name_them():
    class VelocityAMAGOEnv(AMAGOEnv):
        @property
        def env_name(self) -> str:
            floor = int(self.env.unwrapped.target_velocity)
            return f"HalfCheetahVelocity-Vel-[{floor}, {floor + 1}]"

    env = VelocityAMAGOEnv(SlowOrFast(fast=True))
    names = set()
    for seed in range(30):
        timestep, _ = env.reset(seed=seed)
        names.add(env.env_name)
    assert timestep.obs["observation"].shape == (1, 17)
    assert names == {f"HalfCheetahVelocity-Vel-[{floor}, {floor + 1}]" for floor in range(5, 10)}


def test_a_subclass_may_add_the_target_to_the_observation():
    class Told(HalfCheetahV4_MetaVelocity):
        def _get_obs(self):
            return np.append(super()._get_obs(), self.target_velocity)

    env = Told()
    observation, _ = env.reset(seed=0)
    assert observation[-1] == env.target_velocity == env.step(STILL)[0][-1]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="task_min_velocity must be at most task_max_velocity"):
        HalfCheetahV4_MetaVelocity(task_min_velocity=4.0)
    with pytest.raises(TypeError, match="frame_skips"):
        HalfCheetahV4LogVelocity(frame_skips=3)
    env = HalfCheetahV4LogVelocity()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STILL)
    with pytest.raises(AttributeError, match="no_such"):
        _ = env.no_such


def test_it_runs_in_a_vector_environment_and_ends_with_metrics():
    envs = make_vector_env(
        [lambda: AMAGOEnv(HalfCheetahV4_MetaVelocity(), "cheetah")] * 2, env_mode="sync", seed=0
    )
    first = envs.reset().obs["observation"].copy()
    assert (first[0] != first[1]).any()
    for _ in range(1000):
        step = envs.step(np.zeros((2, 6), np.float32))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert [row for row, _ in step.metrics] == [0, 1]
    assert len(step.metrics[0][1]) == 4
    envs.close()


def test_an_agent_trains_on_it(short_training):
    experiment = short_training(lambda: AMAGOEnv(HalfCheetahV4_MetaVelocity(), "cheetah"))
    metrics = experiment.evaluate_test(
        lambda: AMAGOEnv(HalfCheetahV4_MetaVelocity(), "cheetah"), timesteps=1001
    )
    assert metrics["Average Total Return in cheetah"] < 0
    assert metrics["Average Target Velocity Error at Final 50 Timesteps in cheetah"] >= 0
