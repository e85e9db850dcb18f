"""check_env: tells what is wrong with an environment, and what an agent will see of it.

The environment is played with random actions. Errors stop training or make it learn from wrong data; warnings are
mistakes in most environments and intended in some.
"""

import inspect
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from amago.envs.amago_env import AMAGOEnv
from amago.envs.builtin.kshot import KShot
from amago.envs.check_nests import copy_nest, describe_result, equal_nests, space_mismatches
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

Level = Literal["error", "warning"]
Space = gym.spaces.Space[Any]

LARGE_REWARD = 1e4
_SEED = 12345
_COMPARED_STEPS = 50
_COMPARED_RESETS = 8  # without a seed; a task may have few starts
_SHORT_TASK = 10  # steps; episodes of a shorter task often have the same length


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or looks wrong.

    Attributes:
        level: "error" or "warning".
        subject: the part of the environment, such as "reset" or "observation 'image'".
        message: what was found, and the remedy.
    """

    level: Level
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.subject}: {self.message}"


@dataclass
class EnvReport:
    """What `check_env` found, and what an agent sees of the environment.

    Attributes:
        findings: errors and warnings, in the order in which they were met.
        env_name: the name in logs and metrics; "" if the environment could not be wrapped.
        observations: the arrays that the agent sees, as spaces by key.
        action_space: the environment's action space.
        policy_space: the space that the policy acts in.
        rl2_width: width of the vector of previous reward and action.
        episode_lengths: steps of the episodes that ended.
        returns: returns of these episodes with random actions.
        rewards: the smallest and the largest reward; None if no step was taken.
        steps_per_second: of the environment, wrapped for the agent; None if no step was taken.
    """

    findings: list[Finding] = field(default_factory=list)
    env_name: str = ""
    observations: dict[str, gym.spaces.Box] = field(default_factory=dict)
    action_space: Space | None = None
    policy_space: Space | None = None
    rl2_width: int = 0
    episode_lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    rewards: tuple[float, float] | None = None
    steps_per_second: float | None = None

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors."""
        return [finding for finding in self.findings if finding.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that are warnings."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def add(self, level: Level, subject: str, message: str) -> None:
        """Adds a finding, unless one of this level with the same subject and beginning is there."""
        start = message.partition(":")[0]
        for known in self.findings:
            if (known.level, known.subject) == (level, subject) and known.message.startswith(start):
                return
        self.findings.append(Finding(level, subject, message))


def check_env(
    env: gym.Env[Any, Any] | Callable[[], gym.Env[Any, Any]],
    *,
    episodes: int = 3,
    max_steps: int = 1000,
) -> EnvReport:
    """Plays an environment with random actions; returns what is wrong with it and what an agent sees of it.

    The checks: gymnasium's interface; supported spaces; observations in their space (keys, shape, dtype, bounds,
    no NaN); rewards; ends and time limits; metrics in `info`; observations and actions that are changed in place;
    episodes that a seed repeats. Of a vector environment the first row is checked, without `info`. Of an AMAGOEnv
    that steps many environments at once only the spaces and what the agent sees are checked.

    Args:
        env: an environment, which is left open, or a function that makes one, which is closed.
        episodes: episodes to play.
        max_steps: longest episode to play.
    """
    report = EnvReport()
    if not isinstance(env, gym.Env) and callable(env):
        try:
            made = env()
        except Exception as error:
            report.add("error", "environment", f"cannot be made: {_error_text(error)}")
            return report
        try:
            _check(made, report, episodes, max_steps)
        finally:
            if hasattr(made, "close"):
                made.close()
    else:
        _check(env, report, episodes, max_steps)
    return report


class _FirstRow(gym.Env[Any, Any]):
    """The first row of a vector environment, whose rows all take the same action."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space

    def _first(self, observations: Any) -> Any:
        return next(iter(iterate(self.envs.observation_space, observations)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observations, _ = self.envs.reset(seed=seed, options=options)
        return self._first(observations), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = self.envs.num_envs
        empty: Any = create_empty_array(self.action_space, n=rows)
        actions = concatenate(self.action_space, [action] * rows, empty)
        observations, rewards, terminated, truncated, _ = self.envs.step(actions)
        return self._first(observations), rewards[0], terminated[0], truncated[0], {}


def _check(env: Any, report: EnvReport, episodes: int, max_steps: int) -> None:
    if isinstance(env, gym.vector.VectorEnv):
        env = _FirstRow(env)
    if not _check_interface(env, report):
        return
    wrapped = _wrap(env, report)
    if wrapped is not None and wrapped.batched_envs > 1:
        with suppress(_StoppedByError):
            _measure(wrapped, report)
        return
    inner = env.env if isinstance(env, AMAGOEnv) else env
    player = _Player(inner, report)
    try:
        player.play(episodes, max_steps)
        _check_seeds(player)
        if wrapped is not None:
            _measure(wrapped, report)
    except _StoppedByError:
        return
    _check_ends(player, max_steps)
    _check_reward_scale(player)


def _check_interface(env: Any, report: EnvReport) -> bool:
    """Whether the environment is a gymnasium one with two spaces and the usual methods."""
    if not isinstance(env, gym.Env):
        kind = f"{type(env).__module__}.{type(env).__name__}"
        remedy = "derive it from gymnasium.Env; the shimmy package converts environments of the older gym"
        report.add("error", "environment", f"is a {kind}, not a gymnasium.Env: {remedy}")
        return False
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.spaces.Space):
            report.add("error", name, f"is {space!r}, not a gymnasium space: set it in __init__")
    parameters = inspect.signature(env.reset).parameters
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        for name in ("seed", "options"):
            if name not in parameters:
                remedy = "define reset(self, *, seed=None, options=None)"
                report.add("warning", "reset", f"takes no {name}: {remedy}")
    return not report.errors


def _wrap(env: Any, report: EnvReport) -> AMAGOEnv | None:
    """The environment as the agent sees it; None if its spaces are not supported."""
    try:
        wrapped = env if isinstance(env, AMAGOEnv) else AMAGOEnv(env)
        mapped = wrapped.mapped_observation_space
    except (TypeError, ValueError) as error:
        report.add("error", "spaces", str(error))
        return None
    report.env_name = wrapped.env_name
    report.observations = {key: box for key, box in mapped.spaces.items() if isinstance(box, gym.spaces.Box)}
    report.action_space = env.env.action_space if isinstance(env, AMAGOEnv) else env.action_space
    report.policy_space = wrapped.action_space
    report.rl2_width = wrapped.rl2_space.shape[0]
    for key, box in report.observations.items():
        _check_image_space(key, box, report)
    return wrapped


def _check_image_space(key: str, box: gym.spaces.Box, report: EnvReport) -> None:
    is_float_image = len(box.shape) == 3 and np.issubdtype(box.dtype, np.floating)
    if is_float_image and np.all(box.low == 0) and np.all(box.high == 255):
        report.add(
            "warning",
            f"observation {key!r}",
            f"is an image of {box.dtype}: uint8 takes a quarter of the memory on disk, or less",
        )


class _StoppedByError(Exception):
    """The environment raised; the report says so."""


class _Player:
    """Plays episodes with random actions and notes what is wrong with each result."""

    def __init__(self, env: gym.Env[Any, Any], report: EnvReport) -> None:
        self.env = env
        self.report = report
        self.ends: list[tuple[bool, bool]] = []
        self._last_observation: Any = None
        env.action_space.seed(_SEED)

    def play(self, episodes: int, max_steps: int) -> None:
        """Plays episodes from different seeds and notes their lengths, returns and ends."""
        for episode in range(episodes):
            self.reset(seed=_SEED + episode)
            total = 0.0
            for step in range(1, max_steps + 1):
                _, reward, terminated, truncated = self.step(self.env.action_space.sample(), step)
                total += reward
                if terminated or truncated:
                    self.ends.append((terminated, truncated))
                    self.report.episode_lengths.append(step)
                    self.report.returns.append(total)
                    break

    def reset(self, seed: int | None) -> Any:
        """Resets the environment and returns the observation."""
        try:
            result = _reset(self.env, seed)
        except Exception as error:
            self.report.add("error", "reset", f"raised {_error_text(error)}")
            raise _StoppedByError from error
        if not (isinstance(result, tuple) and len(result) == 2):
            self.report.add(
                "error", "reset", f"returned {describe_result(result)}: return (observation, info)"
            )
            raise _StoppedByError
        observation, info = result
        self._check_info("reset", info)
        self._check_observation("reset", observation)
        return observation

    def step(self, action: Any, number: int) -> tuple[Any, float, bool, bool]:
        """Takes step `number` of an episode: (observation, reward, terminated, truncated)."""
        given = copy_nest(action)
        try:
            result = self.env.step(action)
        except Exception as error:
            self.report.add("error", "step", f"raised {_error_text(error)} for the action {given!r}")
            raise _StoppedByError from error
        if not (isinstance(result, tuple) and len(result) == 5):
            remedy = "return (observation, reward, terminated, truncated, info)"
            self.report.add("error", "step", f"returned {describe_result(result)}: {remedy}")
            raise _StoppedByError
        if not equal_nests(given, action):
            self.report.add("warning", "step", "changes the action that it is given: copy it first")
        observation, reward, terminated, truncated, info = result
        self._check_info("step", info)
        self._check_observation(f"step {number}", observation)
        return (
            observation,
            self._check_reward(reward, number),
            self._check_flag("terminated", terminated),
            self._check_flag("truncated", truncated),
        )

    def _check_observation(self, when: str, observation: Any) -> None:
        if self._last_observation is not None:
            observation_before, copied = self._last_observation
            if not equal_nests(observation_before, copied):
                self.report.add(
                    "warning",
                    "observation",
                    "is an array that the next step changes: return a copy, because a replay buffer that keeps it "
                    "sees later values (AMAGOEnv copies it)",
                )
        self._last_observation = observation, copy_nest(observation)
        for subject, message in space_mismatches(self.env.observation_space, observation):
            self.report.add("error", subject, f"{message} (in {when})")

    def _check_reward(self, reward: Any, number: int) -> float:
        try:
            if isinstance(reward, str | bytes):  # numpy would read "1" as a number
                raise TypeError
            array = np.asarray(reward, dtype=np.float64)
        except (TypeError, ValueError):
            self.report.add("error", "reward", f"is {reward!r}, not a number: return a float")
            raise _StoppedByError from None
        if array.size != 1:
            self.report.add("error", "reward", f"has shape {array.shape}: return one float")
            raise _StoppedByError
        if array.shape:
            self.report.add("warning", "reward", f"is an array of shape {array.shape}: return a float")
        value = float(array.reshape(()))
        if not np.isfinite(np.float32(value)):
            self.report.add("error", "reward", f"is {value}, not finite in float32 (in step {number})")
            return 0.0
        low, high = self.report.rewards or (value, value)
        self.report.rewards = min(low, value), max(high, value)
        return value

    def _check_flag(self, name: str, flag: Any) -> bool:
        if not isinstance(flag, (bool, np.bool_)):
            self.report.add("warning", name, f"is {flag!r} of {type(flag).__name__}: return a bool")
        return bool(np.any(flag))

    def _check_info(self, method: str, info: Any) -> None:
        if not isinstance(info, dict):
            self.report.add("error", method, f"returned {type(info).__name__} as info: return a dictionary")
            return
        for key, value in info.items():
            if not str(key).startswith(AMAGO_ENV_LOG_PREFIX):
                continue
            try:
                np.asarray(value, dtype=np.float64)
            except (TypeError, ValueError):
                self.report.add("error", "info", f"metric {key!r} is {value!r}: metrics are numbers")


def _check_seeds(player: _Player) -> None:
    """Checks that a seed repeats its episode, that another seed changes it, and that no seed draws new ones."""
    report = player.report
    first = _record_episode(player, _SEED, global_seed=1)
    again = _record_episode(player, _SEED, global_seed=1)
    if not equal_nests(first, again):
        report.add(
            "error",
            "seed",
            "the same seed and actions make another episode: call super().reset(seed=seed) and draw random "
            "numbers from self.np_random alone",
        )
        return
    if not equal_nests(first, _record_episode(player, _SEED, global_seed=2)):
        report.add(
            "error",
            "seed",
            "random numbers come from Python's or numpy's global generator: draw them from self.np_random, "
            "because actors in one process share a global one",
        )
        return
    if equal_nests(first, _record_episode(player, _SEED + 1, global_seed=1)):
        return  # nothing is random
    drawn = _record_episode(player, None, global_seed=1)
    others = (_record_episode(player, None, global_seed=1) for _ in range(_COMPARED_RESETS - 1))
    if all(equal_nests(drawn, other) for other in others):
        report.add(
            "warning",
            "seed",
            f"{_COMPARED_RESETS} resets without a seed began the same episode: draw a new one in each",
        )


def _record_episode(player: _Player, seed: int | None, global_seed: int) -> list[Any]:
    """Observations, rewards and ends of an episode; `global_seed` seeds Python's and numpy's global generators."""
    space = player.env.action_space
    space.seed(_SEED)
    with _seeded_global_generators(global_seed):
        steps = [copy_nest(player.reset(seed))]
        for number in range(1, _COMPARED_STEPS + 1):
            observation, reward, terminated, truncated = player.step(space.sample(), number)
            steps.append((copy_nest(observation), reward, terminated, truncated))
            if terminated or truncated:
                break
    return steps


@contextmanager
def _seeded_global_generators(seed: int) -> Iterator[None]:
    """Seeds Python's and numpy's global generators, and restores them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the one that is checked)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _check_ends(player: _Player, max_steps: int) -> None:
    report, ends, lengths = player.report, player.ends, player.report.episode_lengths
    if not ends:
        limit = None if player.env.spec is None else player.env.spec.max_episode_steps
        if limit is None:
            report.add(
                "warning",
                "episode",
                f"did not end within {max_steps} random steps: give it a time limit, as in "
                "gymnasium.register(..., max_episode_steps=1000), or evaluations may never finish an episode",
            )
        return
    if all(terminated and truncated for terminated, truncated in ends):
        report.add(
            "warning",
            "terminated",
            "comes with truncated at every end: a time limit alone is truncated only, so that values are "
            "bootstrapped there",
        )
    elif (
        len(ends) > 1
        and len(set(lengths)) == 1
        and lengths[0] >= _SHORT_TASK
        and not any(truncated for _, truncated in ends)
        and not _has_attempts(player.env)
    ):
        report.add(
            "warning",
            "terminated",
            f"ended all episodes after {lengths[0]} steps: if this is a time limit, return truncated=True instead",
        )


def _has_attempts(env: gym.Env[Any, Any]) -> bool:
    """Whether it is a KShot, which terminates after its last attempt."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, KShot):
            return True
        env = env.env
    return False


def _check_reward_scale(player: _Player) -> None:
    report = player.report
    if report.rewards is None:
        return
    low, high = report.rewards
    if max(-low, high) > LARGE_REWARD:
        remedy = "scale them, because gradients and the bins of critics depend on the size of returns"
        report.add("warning", "reward", f"reaches {low if -low > high else high:.3g}: {remedy}")


def _measure(env: AMAGOEnv, report: EnvReport, steps: int = 500, seconds: float = 2.0) -> None:
    """Plays a while through AMAGOEnv, as an agent does, and notes the speed."""
    env.action_space.seed(_SEED)
    count = 0
    low = high = 0.0
    try:
        env.reset(seed=_SEED)
        begun = time.perf_counter()
        while count < steps and time.perf_counter() - begun < seconds:
            actions = [np.asarray(env.action_space.sample()).reshape(-1) for _ in range(env.batched_envs)]
            _, rewards, terminated, truncated, _ = env.step(np.stack(actions))
            low, high = min(low, float(rewards.min())), max(high, float(rewards.max()))
            count += 1
            if env.batched_envs == 1 and (terminated.any() or truncated.any()):
                env.reset()
    except Exception as error:
        report.add("error", "AMAGOEnv", f"raised {_error_text(error)}")
        raise _StoppedByError from error
    report.steps_per_second = count * env.batched_envs / (time.perf_counter() - begun)
    report.rewards = report.rewards or (low, high)


def _reset(env: gym.Env[Any, Any], seed: int | None) -> Any:
    parameters = inspect.signature(env.reset).parameters
    takes_seed = "seed" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if takes_seed:
        return env.reset(seed=seed)
    if seed is not None:  # as AMAGOEnv does
        env.unwrapped.np_random = np.random.default_rng(seed)
    return env.reset()


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
