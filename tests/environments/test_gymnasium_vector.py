"""Vector environments of other packages: Atari in ale-py's threads, and gymnasium's own that step inside jax."""

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.hindsight import load_trajectory

ROWS = 3


def make(name: str):
    if name.startswith("ALE/"):
        import ale_py  # noqa: F401  (registers its environments)

        return gym.make_vec(
            name, ROWS, vectorization_mode="vector_entry_point", max_num_frames_per_episode=200
        )
    return gym.make_vec(name, ROWS)


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "phys2d/CartPole-v1", "Pendulum-v1"])
def test_every_recorded_transition_is_one_of_the_environment(name, tmp_path):
    steps = 220
    env = make_vector_env(
        [lambda: AMAGOEnv(make(name), batched_envs=ROWS)], env_mode="already_vectorized", seed=0
    )
    recorder = TrajectoryRecorder(
        ROWS, save_to=tmp_path, save_len=1e9, max_seq_len=1, rng=np.random.default_rng(0)
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    rng, resets = np.random.default_rng(0), 0
    # Each row's episode as a caller of gymnasium sees it, who skips the step after an end
    episodes = [[inputs.obs["observation"][row].copy()] for row in range(ROWS)]
    seen = []
    for _ in range(steps):
        if isinstance(env.action_space, gym.spaces.Discrete):
            actions = rng.integers(0, env.action_space.n, (ROWS, 1))
        else:
            actions = rng.uniform(-1, 1, (ROWS, *env.action_space.shape)).astype(np.float32)
        step = env.step(actions)
        recorder.add(step)
        resets += len(step.reset_rows)
        for row in range(ROWS):
            obs = step.inputs.obs["observation"][row].copy()
            if row in step.reset_rows:
                episodes[row] = [obs]
                continue
            episodes[row].append(obs)
            if row in step.done_rows:
                seen.append(np.stack(episodes[row]))
    recorder.cut()
    recorder.close()
    env.close()
    trajectories = [load_trajectory(path) for path in tmp_path.iterdir()]
    assert sum(map(len, trajectories)) == recorder.total_frames == steps * ROWS - resets
    assert len(seen) >= ROWS
    recorded = {trajectory.obs["observation"].tobytes() for trajectory in trajectories}
    assert {episode.tobytes() for episode in seen} <= recorded
