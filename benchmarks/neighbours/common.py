"""What both neighbours share: AMAGO's environments as plain Gymnasium ones, evaluation, and the files of a run.

An observation is one vector: all arrays of AMAGO's observation, the previous reward and the previous action.
These are the inputs of AMAGO's policies.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.cli.environments import resolve_environment
from amago.cli.options import parse_arguments
from amago.envs import AMAGOEnv
from amago.experiment.summary import RETURN_METRIC
from amago.hindsight import Timestep

Vector = npt.NDArray[np.float32]
# Observations (B, D) and whether an episode begins, (B,), to actions (B, ...); keeps the memory of each row.
Act = Callable[[Vector, npt.NDArray[np.bool_]], npt.NDArray[Any]]
ACTORS = 16
EVALUATIONS = 6  # during training
EPISODES = 32  # of each of them
FINAL_EPISODES = 100


class PlainEnv(gym.Env[Vector, Any]):
    """An environment of AMAGO's as a Gymnasium one with vectors, for one episode stream.

    Args:
        name: name or id, as `amago-run train` takes it.
        env_args: its KEY=VALUE arguments.
    """

    def __init__(self, name: str, env_args: list[str]) -> None:
        maker = resolve_environment(name, parse_arguments(env_args, "--env-arg"))
        self.env: AMAGOEnv = maker()
        arrays = self.env.mapped_observation_space.spaces.values()
        width = sum(int(np.prod(space.shape or ())) for space in arrays) + 1 + self.env.action_size
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = self.env.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        timestep, _ = self.env.reset(seed=seed)
        return self._vector(timestep), {}

    def step(self, action: Any) -> Any:
        timestep, reward, terminated, truncated, _ = self.env.step(np.asarray(action)[None])
        return self._vector(timestep), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self.env.close()

    def _vector(self, timestep: Timestep) -> Vector:
        obs, rl2s, _ = timestep.as_input()
        parts = [np.asarray(array, np.float32).ravel() for array in (*obs.values(), rl2s)]
        return np.concatenate(parts)


def evaluate(make_env: Callable[[], PlainEnv], act: Act, episodes: int, seed: int) -> float:
    """Mean return of new episodes, played in up to 32 environments at a time."""
    envs = [make_env() for _ in range(min(episodes, 32))]
    returns: list[float] = []
    started = 0
    rows: list[int | None] = []  # episode of each environment
    obs = np.zeros((len(envs), *envs[0].observation_space.shape), np.float32)  # type: ignore[misc]
    totals = np.zeros(len(envs))
    for row, env in enumerate(envs):
        obs[row] = env.reset(seed=seed + started)[0]
        rows.append(started)
        started += 1
    first = np.ones(len(envs), np.bool_)
    while len(returns) < episodes:
        actions = act(obs, first)
        first = np.zeros(len(envs), np.bool_)
        for row, env in enumerate(envs):
            if rows[row] is None:
                continue
            obs[row], reward, terminated, truncated, _ = env.step(actions[row])
            totals[row] += reward
            if terminated or truncated:
                returns.append(float(totals[row]))
                totals[row], rows[row] = 0.0, None
                if started < episodes:
                    rows[row], first[row] = started, True
                    obs[row] = env.reset(seed=seed + started)[0]
                    started += 1
    for env in envs:
        env.close()
    return float(np.mean(returns))


@dataclass
class Journal:
    """Evaluates during training, and writes metrics.jsonl and summary.json as a run of amago-run has them."""

    arguments: argparse.Namespace
    start: float = field(default_factory=time.time)
    lines: list[str] = field(default_factory=list)

    def make_env(self) -> PlainEnv:
        """A new environment of the run."""
        return PlainEnv(self.arguments.env, self.arguments.env_arg)

    def is_due(self, steps: int) -> bool:
        """Whether the next evaluation is due after so many environment steps."""
        return bool(steps >= len(self.lines) * self.arguments.steps / EVALUATIONS)

    def note(self, act: Act, steps: int, updates: int) -> None:
        """Evaluates and keeps the result."""
        value = evaluate(self.make_env, act, EPISODES, seed=10_000 + 1_000 * len(self.lines))
        record = {
            "section": "val",
            "axes": {"total_frames": steps, "gradient_steps": updates},
            "metrics": {RETURN_METRIC: value},
            "time": self.start if not self.lines else time.time(),
        }
        self.lines.append(json.dumps(record))
        print(f"{steps} steps, {time.time() - self.start:.0f} s: return {value:.3f}", flush=True)

    def finish(self, act: Act, steps: int, updates: int) -> None:
        """Plays new episodes with the trained policy and writes both files."""
        seconds = time.time() - self.start
        value = evaluate(self.make_env, act, FINAL_EPISODES, seed=1_000_000)
        folder = Path(self.arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("\n".join(self.lines) + "\n")
        summary = {
            "seed": self.arguments.seed,
            "mean_return": value,
            "eval_episodes": FINAL_EPISODES,
            "env_steps": steps,
            "gradient_steps": updates,
            "wall_seconds": round(seconds, 2),
            "success_by_attempt": [],
        }
        (folder / "summary.json").write_text(json.dumps(summary, indent=2))
        print(f"{steps} steps, {updates} updates, {seconds:.0f} s: return {value:.3f}", flush=True)


def parse(description: str | None) -> argparse.Namespace:
    """The command line of a neighbour."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env", help="name or id, as amago-run train takes it")
    parser.add_argument("--env-arg", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--steps", type=int, required=True, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="folder of the run")
    return parser.parse_args()
