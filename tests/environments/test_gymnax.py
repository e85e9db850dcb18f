"""Environments of gymnax: what is recorded of them is what their own functions give, one row at a time."""

from pathlib import Path

import numpy as np
import pytest

from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin import gymnax_envs
from amago.envs.builtin.gymnax_envs import GymnaxCompatibility
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import FrozenTraj, load_trajectory

ROWS = 6


def make_vector(name: str, rows: int = ROWS, exploration=None, **params):
    import gymnax

    env, defaults = gymnax.make(name)
    return make_vector_env(
        [
            lambda: AMAGOEnv(
                GymnaxCompatibility(env, num_envs=rows, params=defaults.replace(**params)),
                name,
                batched_envs=rows,
            )
        ],
        env_mode="already_vectorized" if rows > 1 else "sync",
        exploration_wrapper_type=exploration,
        seed=0,
    )


def recorded(folder: Path, vector_env, steps: int) -> list[FrozenTraj]:
    recorder = TrajectoryRecorder(
        vector_env.num_envs, save_to=folder, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    recorder.begin(vector_env.reset(seed=3), vector_env.env_names)
    action = vector_env.action_space
    shape = (vector_env.num_envs, *(action.shape or (1,)))
    for _ in range(steps):
        recorder.add(vector_env.step(np.zeros(shape, action.dtype)))
    recorder.cut()
    recorder.close()
    vector_env.close()
    trajectories = [load_trajectory(path) for path in sorted(folder.iterdir())]
    assert sum(map(len, trajectories)) == recorder.total_frames == vector_env.num_envs * steps
    return trajectories


def check_cart_poles(trajectories: list[FrozenTraj], max_steps: int) -> None:
    """Plays every recorded episode again from its first observation, which in CartPole is the whole state."""
    import gymnax
    import jax
    from gymnax.environments.classic_control.cartpole import EnvState

    env, params = gymnax.make("CartPole-v1")
    params = params.replace(max_steps_in_episode=max_steps)
    step = jax.jit(env.step_env)
    key = jax.random.key(0)
    for trajectory in trajectories:
        obs = trajectory.obs["observation"]
        np.testing.assert_array_equal(trajectory.time_idxs[:, 0], np.arange(len(trajectory) + 1))
        state = EnvState(time=0, x=obs[0, 0], x_dot=obs[0, 1], theta=obs[0, 2], theta_dot=obs[0, 3])
        for t, action in enumerate(trajectory.actions.argmax(1)):
            expected, state, reward, terminated, _ = step(key, state, action, params)
            np.testing.assert_allclose(obs[t + 1], expected, rtol=1e-4, atol=1e-6)
            assert trajectory.rews[t, 0] == reward
            assert trajectory.dones[t, 0] == terminated
            assert (t + 1 == len(trajectory)) or not (terminated or state.time >= max_steps)


@pytest.mark.parametrize("rows", [ROWS, 1])
def test_recorded_episodes_are_those_that_the_environment_s_own_functions_give(rows, tmp_path):
    steps, max_steps = 240 // rows, 12
    env = make_vector("CartPole-v1", rows, EpsilonGreedy, max_steps_in_episode=max_steps)
    trajectories = recorded(tmp_path, env, steps)
    assert len(trajectories) > 20
    endings = {(len(each) == max_steps, bool(each.dones[-1, 0])) for each in trajectories}
    assert endings >= {(True, False), (False, True)}  # stopped by the clock, and fallen
    check_cart_poles(trajectories, max_steps)


def test_a_final_observation_of_the_next_episode_would_be_seen(tmp_path):
    trajectories = recorded(tmp_path, make_vector("CartPole-v1"), 40)
    ended = next(each for each in trajectories if each.dones[-1, 0])
    ended.obs["observation"][-1] = trajectories[0].obs["observation"][0]
    with pytest.raises(AssertionError):
        check_cart_poles([ended], 500)


@pytest.mark.parametrize(
    ("name", "obs", "action"),
    [
        ("Pendulum-v1", (3,), "Box(-1.0, 1.0, (1,), float32)"),
        ("Breakout-MinAtar", (10, 10, 4), "Discrete(3)"),
        ("FrozenLake-misc", (16,), "Discrete(4)"),
        ("Catch-bsuite", (10, 5), "Discrete(3)"),
    ],
)
def test_spaces_are_those_of_one_row(name, obs, action):
    env = make_vector(name)
    assert env.observation_space["observation"].shape == obs
    assert str(env.action_space) == action
    inputs = env.reset()
    assert inputs.obs["observation"].shape == (ROWS, *obs)
    assert len(np.unique(inputs.obs["observation"], axis=0)) > 1 or name in (
        "FrozenLake-misc",
        "Catch-bsuite",
    )


def test_a_seed_fixes_all_that_follows_and_without_one_the_stream_goes_on():
    env = make_vector("CartPole-v1")

    def falls(seed: int | None) -> list[np.ndarray]:
        inputs = env.reset(seed=seed)
        actions = np.zeros((ROWS, 1), np.int64)
        return [inputs.obs["observation"].copy()] + [
            env.step(actions).inputs.obs["observation"].copy() for _ in range(15)
        ]

    first, second, other, again = falls(1), falls(None), falls(2), falls(1)
    np.testing.assert_array_equal(first, again)
    for different in (second, other):
        assert not np.array_equal(first[0], different[0])
        assert not np.array_equal(first[-1], different[-1])


def test_spaces_and_observations_of_several_parts_keep_their_form():
    import jax.numpy as jnp
    from gymnax.environments import environment, spaces

    class Parts(environment.Environment):
        """Two steps; shows the time in a dictionary of a vector and a pair."""

        def observation_space(self, params):
            pair = spaces.Tuple(
                [spaces.Discrete(4), spaces.Box(jnp.zeros(2), jnp.ones(2), (2,), jnp.float32)]
            )
            return spaces.Dict({"time": spaces.Box(0, 9, (1,), jnp.int32), "pair": pair})

        def action_space(self, params):
            return spaces.Discrete(2)

        def show(self, time):
            return {"time": jnp.array([time]), "pair": (jnp.array(time), jnp.full(2, time / 10))}

        def reset_env(self, key, params):
            return self.show(0), environment.EnvState(time=0)

        def step_env(self, key, state, action, params):
            state = environment.EnvState(time=state.time + 1)
            return self.show(state.time), state, jnp.float32(action), jnp.bool_(False), {}

    env = AMAGOEnv(
        GymnaxCompatibility(Parts(), 3, environment.EnvParams(max_steps_in_episode=2)), batched_envs=3
    )
    assert set(env.observation_space.spaces) == {"time", "pair/0", "pair/1"}
    env.reset()
    env.step(np.ones((3, 1), np.int64))
    _, _, terminated, truncated, info = env.step(np.ones((3, 1), np.int64))
    assert truncated.all()
    assert not terminated.any()
    final = env.final_observation(info, [0, 2])
    np.testing.assert_array_equal(final["time"], [[2], [2]])
    np.testing.assert_array_equal(final["pair/0"].argmax(1), [2, 2])
    np.testing.assert_allclose(final["pair/1"], 0.2)


def test_invalid_arguments_are_refused():
    import gymnax

    env, params = gymnax.make("CartPole-v1")
    with pytest.raises(TypeError, match=r"gymnax\.make"):
        GymnaxCompatibility("CartPole-v1", 4, params)
    with pytest.raises(ValueError, match="num_envs"):
        GymnaxCompatibility(env, 0, params)
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        GymnaxCompatibility(env, 2).step(np.zeros(2, np.int64))

    class OfAnOlderRelease(type(env)):
        def step(self, *args):
            obs, state, reward, terminated, truncated, info = super().step(*args)
            return obs, state, reward, terminated | truncated, info

    old = GymnaxCompatibility(OfAnOlderRelease(), 2)
    old.reset()
    with pytest.raises(ImportError, match=r"returns 5 results.*gymnax>=1\.0"):
        old.step(np.zeros(2, np.int64))


def test_without_a_seed_every_environment_plays_episodes_of_its_own():
    import gymnax

    cart_pole, _ = gymnax.make("CartPole-v1")
    env = GymnaxCompatibility(cart_pole, 2, seed=4)
    first, second = env.reset()[0], env.reset()[0]
    assert not np.array_equal(first, second)  # the stream goes on
    again, unseeded, other = (
        GymnaxCompatibility(cart_pole, 2, **seed).reset()[0] for seed in ({"seed": 4}, {}, {})
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(unseeded, other)


def test_a_short_training(short_training):
    import gymnax

    env, params = gymnax.make("Catch-bsuite")
    experiment = short_training(
        lambda: AMAGOEnv(GymnaxCompatibility(env, 4, params), "gymnax_Catch-bsuite", batched_envs=4),
        env_mode="already_vectorized",
        parallel_actors=4,
    )
    assert experiment.val_envs.num_envs == 4


def test_both_spellings_are_the_same():
    assert gymnax_envs.GymnaxCompatability is GymnaxCompatibility
