"""An environment whose observations tell where they belong, and a program that records it until it is killed.

The observation is (row, episode, step, action that led here), so what was recorded can be checked from the files
alone. Run as a program: FOLDER FORMAT ENV_MODE ROWS. It prints "file NAME LENGTH" when a file is reported as
written, and "step FRAMES UNSAVED" after each step.
"""

import os
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np

ACTIONS = 4


def action_for(obs: np.ndarray) -> np.ndarray:
    """(N, 1), what the policy of these tests does: it follows from the observations (N, 4) alone."""
    return (obs[:, :3] @ np.array([7, 3, 5])).astype(np.int64)[:, None] % ACTIONS


class NumberedEpisodes(gym.Env):
    """Episodes of the given lengths, over and over; every third one is truncated, the others terminate."""

    def __init__(self, row: int, lengths: list[int], image_side: int = 2) -> None:
        self.row, self.lengths = row, lengths
        self.episode = -1
        self.image = np.zeros((image_side, image_side), np.uint8)
        self.observation_space = gym.spaces.Dict(
            {
                "where": gym.spaces.Box(-1, 2**40, (4,), np.float64),
                "image": gym.spaces.Box(0, 255, self.image.shape, np.uint8),
            }
        )
        self.action_space = gym.spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return self._observe(-1), {}

    def step(self, action):
        self.steps += 1
        over = self.steps >= self.lengths[self.episode % len(self.lengths)]
        truncated = over and self.episode % 3 == 2
        reward = self.row + 100.0 * self.episode + self.steps
        return self._observe(int(action)), reward, over and not truncated, truncated, {}

    def _observe(self, action: int):
        where = np.array([self.row, self.episode, self.steps, action], np.float64)
        return {"where": where, "image": self.image + np.uint8((self.episode + self.steps) % 256)}


def main(folder: str, save_as: str, env_mode: str, rows: str) -> None:
    from amago.envs import AMAGOEnv
    from amago.envs.recorder import TrajectoryRecorder
    from amago.envs.vector import make_vector_env

    def say(line: str) -> None:
        os.write(1, f"{line}\n".encode())

    def make_env(row: int):
        return lambda: AMAGOEnv(NumberedEpisodes(row, [3, 40, 1, 17], image_side=64), "numbered")

    def written(path: Path) -> None:
        from amago.hindsight import trajectory_length

        say(f"file {path.name} {trajectory_length(path)}")

    env = make_vector_env([make_env(row) for row in range(int(rows))], env_mode=env_mode)
    recorder = TrajectoryRecorder(
        int(rows),
        save_to=Path(folder),
        save_as=save_as,
        save_len=20,
        max_seq_len=8,
        rng=np.random.default_rng(0),
        on_written=written,
    )
    inputs = env.reset()
    recorder.begin(inputs, env.env_names)
    while True:
        step = env.step(action_for(inputs.obs["where"]))
        recorder.add(step)
        say(f"step {recorder.total_frames} {recorder.unsaved_frames}")


if __name__ == "__main__":
    main(*sys.argv[1:])
