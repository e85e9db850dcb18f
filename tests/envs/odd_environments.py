"""Environments that return, keep and change odd things, each telling what should be recorded of it.

All are deterministic for a seed, so the truth is had by playing one once more with the recorded actions.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

ROWS = 3
Arrays = dict[str, np.ndarray]


class Plain(gym.Env):
    """Counts: (row, episode, step, number of the last action). Subclasses change one thing each."""

    observation_space: gym.Space = Box(-10.0, 1000.0, (4,), np.float32)
    action_space: gym.Space = Discrete(3)
    env_name = "plain"

    def __init__(self, row: int) -> None:
        self.row, self.episode, self.time = row, -1, 0
        self.env_name = f"row{row}"

    @property
    def length(self) -> int:
        return 1 + (self.row + 2 * self.episode) % 5

    def count(self, action: Any) -> np.ndarray:
        """The truth about this moment."""
        return np.array([self.row, self.episode, self.time, np.sum(action)], np.float32)

    def show(self, counts: np.ndarray) -> Any:
        """What the environment returns as its observation."""
        return counts

    def expected(self, counts: np.ndarray) -> Arrays:
        """What should be recorded of it."""
        return {"observation": counts}

    def reward(self) -> Any:
        return self.expected_reward()

    def expected_reward(self) -> float:
        return self.episode + self.time / 4

    def ends(self) -> tuple[Any, Any]:
        """terminated, truncated"""
        over = self.time >= self.length
        return over and self.episode % 2 == 0, over and self.episode % 2 == 1

    def info(self) -> dict[str, Any]:
        return {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        self.counts = self.count(-1)
        return self.show(self.counts), self.info()

    def step(self, action):
        self.time += 1
        self.counts = self.count(action)
        return self.show(self.counts), self.reward(), *self.ends(), self.info()


class OfManyParts(Plain):
    observation_space = Dict(
        {
            "b": Tuple([Discrete(5, start=-2), MultiDiscrete([3, 4])]),
            "a": Dict({"bits": MultiBinary(3), "image": Box(0, 255, (2, 3, 1), np.uint8)}),
            "number": Box(-5.0, 1000.0, (), np.float64),
        }
    )

    def show(self, counts):
        return {  # in another order than the space, and with something that the space does not name
            "unknown": "text",
            "number": float(counts[2]),
            "a": {"image": np.full((2, 3, 1), counts[1], np.uint8), "bits": [1, 0, int(counts[2]) % 2]},
            "b": (int(counts[2]) % 5 - 2, np.array([counts[0], counts[2] % 4], np.int64)),
        }

    def expected(self, counts):
        row, episode, time, _ = counts.astype(int)
        return {
            "a/bits": np.array([1, 0, time % 2], np.int8),
            "a/image": np.full((2, 3, 1), episode, np.uint8),
            "b/0": np.eye(5, dtype=np.float32)[time % 5],
            "b/1": np.concatenate([np.eye(3, dtype=np.float32)[row], np.eye(4, dtype=np.float32)[time % 4]]),
            "number": np.array([time], np.float64),
        }


class InOneArray(Plain):
    """The array of observations is the same in every step, and is overwritten before the next one."""

    def show(self, counts):
        if not hasattr(self, "array"):
            self.array = np.zeros(4, np.float32)
        self.array[:] = counts
        return self.array

    def step(self, action):
        self.array[:] = -7.0
        return super().step(action)


class InAnArrayOfAll(Plain):
    """Views of one array that all environments of the process share; stepping one spoils those of the others."""

    shared = np.zeros((ROWS, 4), np.float32)

    def show(self, counts):
        self.shared[:] = -7.0
        self.shared[self.row] = counts
        return self.shared[self.row]


class AsAnOddArray(Plain):
    """Backwards views, read-only ones, other byte orders and memory layouts, in turn."""

    observation_space = Box(-10.0, 1000.0, (2, 2), np.float32)

    def show(self, counts):
        square = counts.reshape(2, 2)
        frozen = square.copy()
        frozen.setflags(write=False)
        forms = (np.flip(square[::-1].copy(), 0), np.asfortranarray(square), square.astype(">f4"), frozen)
        return (*forms, np.ma.masked_array(square))[self.time % 5]

    def expected(self, counts):
        return {"observation": counts.reshape(2, 2)}


class OfOtherTypes(Plain):
    """Lists, tuples, float64, integers and objects that are arrays only on request, where floats are declared."""

    def show(self, counts):
        class Convertible:
            def __array__(self, dtype=None, copy=None):
                return counts.astype(np.float32 if dtype is None else dtype)

        forms = (counts.tolist(), tuple(counts), counts.astype(np.float64), counts.astype(np.int64))
        return (*forms, counts.astype(np.float16), Convertible())[self.time % 6]


class RewardsOfManyTypes(Plain):
    def expected_reward(self):
        return float(self.time % 2)

    def reward(self):
        value = self.time % 2
        forms: tuple[Any, ...] = (int(value), bool(value), np.float64(value), np.bool_(value))
        return (*forms, np.array(value), np.array([value]), np.array([[value]], np.int8))[self.time % 7]


class EndsOfManyTypes(Plain):
    """Terminated and truncated at once, in numpy's and Python's types."""

    def ends(self):
        over = self.time >= self.length
        return ((over, over), (np.bool_(over), np.array([over])), (int(over), np.array(over)))[
            self.episode % 3
        ]


class Renamed(Plain):
    """Another name in every episode, one that no file may have."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self.env_name = f"row{self.row}/task_{self.episode} é"
        return result


class Talkative(Plain):
    """Prints a lot, at both outputs, and changes what others in the process rely on."""

    def show(self, counts):
        print("x" * 20_000)
        print("y" * 20_000, file=sys.stderr)
        np.random.seed(0)  # noqa: NPY002
        return counts


class HugeInfos(Plain):
    """Infos that cannot be sent, of megabytes, used again, with keys that are no texts."""

    big = bytearray(3_000_000)

    def info(self):
        return {0: self.big, "self": self, "lock": threading.Lock(), "call": lambda: None, None: {}}


class SpoilsItsAction(Plain):
    """Changes its action in place, which must not reach what is recorded."""

    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action):
        result = super().step(action.copy())
        action[:] = -3.0
        return result


class KeepsItsAction(Plain):
    """Shows the action of the step before, which it kept without a copy."""

    action_space = Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.last = np.zeros(2, np.float32)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(self.last)
        self.last = action
        return result


class Random(Plain):
    """Random observations and lengths, from the generator that gymnasium seeds."""

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.drawn = int(self.np_random.integers(1, 6))
        return super().reset(options=options)

    @property
    def length(self):
        return self.drawn

    def count(self, action):
        return np.array([self.row, self.episode, self.time, self.np_random.random()], np.float32)


class OddBatch(gym.Env):
    """The environments of a list as one, which resets its rows itself, in odd forms.

    All observations are written into one array, final ones are objects in an array with None elsewhere, and
    results are lists.
    """

    def __init__(self, envs: list[Plain]) -> None:
        self.envs = envs
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.array = np.zeros((len(envs), *self.observation_space.shape), self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        self._reset(range(len(self.envs)))
        return self.array, {}

    def _reset(self, rows) -> None:
        for row in rows:
            self.envs[row].reset()
            self.array[row] = self.envs[row].counts

    def step(self, action):
        assert len(action) == len(self.envs)
        results = [env.step(each) for env, each in zip(self.envs, action, strict=True)]
        _, rewards, terminated, truncated, _ = map(list, zip(*results, strict=True))
        ended = [row for row in range(len(self.envs)) if terminated[row] or truncated[row]]
        final = np.full(len(self.envs), None)
        for row, env in enumerate(self.envs):
            self.array[row] = env.counts
            if row in ended:
                final[row] = env.counts.copy()
        self._reset(ended)
        return self.array, rewards, terminated, truncated, {"final_observation": final} if ended else {}


class Wrong(Plain):
    """Does one thing wrong in the third step of its second episode."""

    def __init__(self, row: int, wrong: Callable[..., Any] | None) -> None:
        super().__init__(row)
        self.wrong = wrong

    def step(self, action):
        result = super().step(action)
        if self.wrong is None or (self.episode, self.time) != (1, 3):
            return result
        return self.wrong(*result)


def another_shape(obs, *rest):
    return (obs[:3], *rest)


def no_observation(obs, *rest):
    return (None, *rest)


def no_dictionary(obs, *rest):
    return ({"something": obs}, *rest)


def two_rewards(obs, reward, *rest):
    return (obs, np.array([reward, reward]), *rest)


def no_reward(obs, reward, *rest):
    return (obs, None, *rest)


def a_word(obs, reward, *rest):
    return (obs, "much", *rest)


def four_results(*result):
    return result[:4]


def a_reward_without_end(obs, reward, *rest):
    return (obs, 1e39, *rest)


def a_metric_that_is_no_number(*result):
    return (*result[:4], {"AMAGO_LOG_METRIC success": "yes"})
