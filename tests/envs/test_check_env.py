"""check_env finds each mistake that it names, and nothing in environments without one."""

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv
from amago.envs.builtin.kshot import KShot
from amago.envs.builtin.room_key_door import RoomKeyDoor
from amago.envs.check_env import EnvReport, check_env


class Walk(gym.Env[Any, Any]):
    """A random walk of at most 20 steps without mistakes; subclasses make one each."""

    limit = 20

    def __init__(self) -> None:
        self.observation_space: gym.spaces.Space[Any] = gym.spaces.Box(-5.0, 5.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.place = float(self.np_random.uniform(-1, 1))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        self.place += int(action) - 1
        outside = abs(self.place) > 3
        return self.observe(), 1.0, outside, self.time >= self.limit and not outside, {}

    def observe(self) -> Any:
        return np.array([np.clip(self.place, -5, 5), min(self.time / self.limit, 5)], np.float32)


class OldForm(Walk):
    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class OldReset(Walk):
    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0]


class NoSeed(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Doubles(Walk):
    def observe(self) -> Any:
        return super().observe().astype(np.float64)


class OutOfBounds(Walk):
    def observe(self) -> Any:
        return super().observe() + 10


class NotANumber(Walk):
    def observe(self) -> Any:
        return np.full(2, np.nan, np.float32)


class WrongShape(Walk):
    def observe(self) -> Any:
        return np.zeros(3, np.float32)


class ListObservation(Walk):
    def observe(self) -> Any:
        return [0.0, 0.0]


class MissingKey(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Dict({"a": self.observation_space, "b": gym.spaces.Discrete(2)})

    def observe(self) -> Any:
        return {"a": super().observe()}


class GlobalRandom(Walk):
    def observe(self) -> Any:
        return np.array([random.random(), np.random.random()], np.float32)  # noqa: NPY002


class Unseeded(Walk):
    rng = np.random.default_rng(0)

    def observe(self) -> Any:
        return self.rng.uniform(-1, 1, 2).astype(np.float32)


class SameEpisode(Walk):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=0 if seed is None else seed)


class FewStarts(Walk):
    """Most episodes without a seed are the same, as where there are few states to begin in."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed)
        if seed is None:
            self.resets = getattr(self, "resets", 0) + 1
            self.place = 0.5 if self.resets == 4 else 0.0
            return self.observe(), {}
        return result


class Reused(Walk):
    kept = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.kept[:] = super().observe()
        return self.kept


class ChangesAction(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def step(self, action: Any) -> Any:
        action *= 0
        return super().step(1)


class UnboundedAction(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class ArrayReward(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, reward]), *rest


class TextReward(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, str(reward), *rest


class InfiniteReward(Walk):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("inf"), *rest


class HugeReward(Walk):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, -2e6, *rest


class IntegerFlag(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class TimeLimitTerminates(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *_ = super().step(1)
        return observation, reward, self.time >= self.limit, False, {}


class BothAtTheEnd(Walk):
    def step(self, action: Any) -> Any:
        observation, reward, *_ = super().step(1)
        return observation, reward, self.time >= self.limit, self.time >= self.limit, {}


class Endless(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(1)[:2], False, False, {}


class InfoIsNone(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class WordAsMetric(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {f"{AMAGO_ENV_LOG_PREFIX} Mood": "good"}


class Raises(Walk):
    def step(self, action: Any) -> Any:
        raise KeyError("lost")


ERRORS = [
    (OldForm, "step", "returned 4 results"),
    (OldReset, "reset", "returned a ndarray"),
    (OutOfBounds, "observation", "outside the bounds"),
    (NotANumber, "observation", "NaN"),
    (WrongShape, "observation", "has shape (3,): its space says (2,)"),
    (ListObservation, "observation", "is a list"),
    (Doubles, "observation", "has dtype float64: its space says float32"),
    (MissingKey, "observation", "lacks the key 'b'"),
    (GlobalRandom, "seed", "global generator"),
    (Unseeded, "seed", "the same seed and actions make another episode"),
    (UnboundedAction, "spaces", "bound"),
    (ArrayReward, "reward", "has shape (2,)"),
    (TextReward, "reward", "not a number"),
    (InfiniteReward, "reward", "not finite"),
    (InfoIsNone, "step", "returned NoneType as info"),
    (WordAsMetric, "info", "metrics are numbers"),
    (Raises, "step", "raised KeyError: 'lost' for the action"),
]
WARNINGS = [
    (NoSeed, "reset", "takes no seed"),
    (SameEpisode, "seed", "8 resets without a seed began the same episode"),
    (Reused, "observation", "the next step changes"),
    (ChangesAction, "step", "changes the action"),
    (HugeReward, "reward", "reaches -2e+06"),
    (IntegerFlag, "terminated", "return a bool"),
    (TimeLimitTerminates, "terminated", "return truncated=True"),
    (BothAtTheEnd, "terminated", "comes with truncated at every end"),
    (Endless, "episode", "time limit"),
]


def subjects(report: EnvReport) -> str:
    return "\n".join(map(str, report.findings))


def test_nothing_is_found_in_an_environment_without_mistakes() -> None:
    report = check_env(Walk())
    assert not report.findings, subjects(report)


@pytest.mark.parametrize(("make", "subject", "message"), ERRORS)
def test_an_error_is_named(make: Callable[[], Walk], subject: str, message: str) -> None:
    report = check_env(make)
    found = [finding for finding in report.errors if finding.subject == subject]
    assert any(message in finding.message for finding in found), subjects(report)


@pytest.mark.parametrize(("make", "subject", "message"), WARNINGS)
def test_a_warning_is_named_and_is_no_error(make: Callable[[], Walk], subject: str, message: str) -> None:
    report = check_env(make)
    found = [finding for finding in report.warnings if finding.subject == subject]
    assert any(message in finding.message for finding in found), subjects(report)
    assert not report.errors, subjects(report)


def test_few_starts_are_not_taken_for_one() -> None:
    report = check_env(FewStarts)
    assert not report.findings, subjects(report)


@pytest.mark.parametrize(
    ("low", "high", "is_screen"), [(0, 255, True), (-np.inf, np.inf, False), (0, 12, False), (-1, 1, False)]
)
def test_only_images_of_floats_from_0_to_255_are_told_of_uint8(
    low: float, high: float, is_screen: bool
) -> None:
    class Grid(Walk):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(low, high, (5, 5, 2), np.float32)

        def observe(self) -> Any:
            return np.full((5, 5, 2), np.clip(self.place, 0, 1), np.float32)

    assert ("uint8" in subjects(check_env(Grid))) == is_screen


def test_attempts_that_end_by_termination_are_not_taken_for_a_time_limit() -> None:
    gym.register("Attempts-v0", lambda: KShot(gym.wrappers.TimeLimit(Endless(), 10), k=2))
    try:
        report = check_env(lambda: gym.make("Attempts-v0"))
    finally:
        del gym.registry["Attempts-v0"]
    assert report.episode_lengths == [21] * 3
    assert not report.findings, subjects(report)


def test_a_mistake_in_every_step_is_reported_once() -> None:
    assert len(check_env(OutOfBounds).findings) == 1


def test_the_report_tells_what_an_agent_sees() -> None:
    report = check_env(lambda: AMAGOEnv(RoomKeyDoor(meta_rollout_horizon=40), env_name="room"), episodes=2)
    assert report.env_name == "room"
    assert {key: box.shape for key, box in report.observations.items()} == {"observation": (4,)}
    assert report.policy_space == gym.spaces.Discrete(5)
    assert report.rl2_width == 1 + 5
    assert report.episode_lengths == [40, 40]
    assert report.steps_per_second is not None
    assert report.steps_per_second > 100


def test_an_environment_that_cannot_be_made_or_is_of_another_library_is_an_error() -> None:
    def fail() -> Walk:
        raise OSError("no screen")

    assert "OSError: no screen" in subjects(check_env(fail))

    class Foreign:
        observation_space = action_space = None

    assert "not a gymnasium.Env" in subjects(check_env(Foreign()))  # type: ignore[arg-type]


def test_an_environment_that_is_given_stays_open() -> None:
    class Closable(Walk):
        closed = False

        def close(self) -> None:
            self.closed = True

    env = Closable()
    check_env(env)
    assert not env.closed
    made: list[Closable] = []

    def make() -> Closable:
        made.append(Closable())
        return made[-1]

    check_env(make)
    assert made[0].closed
