"""The rollouts that `benchmarks.rollout` measures, and their environments."""

from __future__ import annotations

import dataclasses
import itertools
import time
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, TformerTrajEncoder

WIDTH, LAYERS = 128, 3
ENCODERS: dict[str, Any] = {
    "Transformer": partial(TformerTrajEncoder, d_model=WIDTH, d_ff=4 * WIDTH, n_layers=LAYERS),
    "GRU": partial(GRUTrajEncoder, d_hidden=WIDTH, d_output=WIDTH, n_layers=LAYERS),
    "FF": partial(FFTrajEncoder, d_model=WIDTH, n_layers=LAYERS),
}


class Noise(gym.Env[Any, int]):
    """Observations of any shape that cost nothing, in episodes of 200 steps."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        image = len(shape) == 3
        self.observation_space = (
            gym.spaces.Box(0, 255, shape, np.uint8) if image else gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        )
        self.action_space = gym.spaces.Discrete(5)  # type: ignore[assignment]
        self._obs = np.full(shape, 100 if image else 0.5, self.observation_space.dtype)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._time = 0
        return self._obs, {}

    def step(self, action: int) -> Any:
        self._time += 1
        return self._obs, 0.0, self._time == 200, False, {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What to measure.

    Args:
        env: lake, CartPole, Pendulum or the shape of an observation such as 84x84x3.
        busy_us: by how much each of its steps is made longer.
        double_buffer: as `Rollout` takes it; without effect in this process.
        ahead: let the agent begin with actions while environments are stepped and recorded.
    """

    env: str
    encoder: str
    mode: str
    actors: int = 12
    window: int = 128
    reference: int | None = None
    busy_us: int = 0
    double_buffer: bool | None = None
    ahead: bool = True

    @property
    def name(self) -> str:
        slower = f" + {self.busy_us} us" if self.busy_us else ""
        way = {None: "", False: " plain", True: " double-buffered"}[self.double_buffer]
        return f"{self.env}{slower} {self.encoder} {self.mode}{way}{'' if self.ahead else ' not ahead'}"


ROWS = (
    Row(env="lake", encoder="Transformer", mode="sync", reference=3850),
    Row(env="lake", encoder="GRU", mode="sync", reference=7590),
    Row(env="lake", encoder="FF", mode="sync", reference=7900),
    Row(env="lake", encoder="Transformer", mode="async", reference=1940),
    Row(env="lake", encoder="GRU", mode="async", reference=3360),
    Row(env="lake", encoder="FF", mode="async"),
    Row(env="CartPole", encoder="FF", mode="sync", reference=6880),
    Row(env="Pendulum", encoder="Transformer", mode="sync", actors=32, reference=4140),
)
SCALING = (
    *(Row(env="lake", encoder="Transformer", mode="sync", actors=n) for n in (1, 4, 16, 64, 256)),
    *(Row(env=shape, encoder="FF", mode="sync") for shape in ("4", "64", "1024", "16384", "84x84x3")),
    *(Row(env="lake", encoder="Transformer", mode="sync", window=w) for w in (64, 256, 512, 1024, 2048)),
)


OVERLAP = tuple(
    Row(
        env="lake",
        encoder="Transformer",
        mode="async",
        actors=actors,
        busy_us=busy_us,
        double_buffer=double_buffer,
    )
    for actors, busy_us in ((12, 0), (12, 50), (64, 20), (12, 1000))
    for double_buffer in (False, True, None)
)


AHEAD = tuple(
    dataclasses.replace(row, ahead=ahead) for row in ROWS if row.mode == "sync" for ahead in (False, True)
)


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """Makes every step longer by computing, as environments with more to do are."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return self.env.step(action)


def make_env(name: str) -> gym.Env[Any, Any]:
    """The environment itself, without anything of ours around it."""
    if name == "lake":
        return MetaFrozenLake(4, k_episodes=5)
    if name in ("CartPole", "Pendulum"):
        return gym.make({"CartPole": "CartPole-v1", "Pendulum": "Pendulum-v1"}[name])
    return Noise(tuple(int(part) for part in name.split("x")))


def make_row_env(row: Row) -> gym.Env[Any, Any]:
    """The environment of a row, without anything of ours around it."""
    env = make_env(row.env)
    return Busy(env, 1e-6 * row.busy_us) if row.busy_us else env


def make_amago_env(row: Row) -> AMAGOEnv:
    """One actor's environment."""
    return AMAGOEnv(make_row_env(row), env_name=row.env)


def bare_rate(row: Row, seconds: float) -> float:
    """Steps per second of one environment with random actions, resets included."""
    env = make_row_env(row)
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(1000)])
    env.reset(seed=0)
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for _ in range(500):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
        steps += 500
    return steps / passed
