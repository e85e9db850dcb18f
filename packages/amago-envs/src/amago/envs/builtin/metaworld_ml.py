"""Meta-World: k attempts at a manipulation task whose goal is hidden (Yu et al. 2019): ML1, ML10, ML25, ML45.

Needs metaworld; tested with 3.1.1 and mujoco 3.3.0. `Metaworld` is the environment for agents.
"""

import functools
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Le

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX
from amago.envs.registry import did_you_mean

Observation = npt.NDArray[np.float32]
SPLITS = ("train", "test")
LONGEST_ATTEMPT = 500  # Meta-World's own limit


@functools.cache
def _draw_tasks(name: str, seed: int) -> tuple[Any, ...]:
    """The 50 tasks of one class that Meta-World draws with `seed`; once per process, because it simulates them."""
    metaworld = optional_import("metaworld", extra="metaworld")
    return tuple(metaworld.CustomML([name], [], seed=seed).train_tasks)


class LazyBenchmark:
    """A benchmark whose tasks are drawn when their class is first used: ML45 draws 2,500, which takes 20 s.

    Every process that passes the same seed has the same tasks. Those of ML1 are those of `metaworld.ML1`; in the
    others, which Meta-World draws class after class, every class begins with the seed.

    Args:
        benchmark_name: "ml10", "ml25", "ml45", or the name of a class ("reach-v3") for ML1. Names of Meta-World's
            version 2 ("reach-v2") stand for those of version 3, with a warning.
        seed: of the goals; None draws a new one.

    Attributes:
        train_classes, test_classes: environment classes by name.

    Raises:
        ImportError: if metaworld is not installed.
        ValueError: for an unknown name.
    """

    @check_arguments
    def __init__(self, benchmark_name: str, seed: Count | None = 0) -> None:
        env_dict = optional_import("metaworld.env_dict", extra="metaworld")
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        self._seeds = {"train": seed, "test": seed}
        suites = {name: getattr(env_dict, f"{name.upper()}_V3") for name in ("ml10", "ml25", "ml45")}
        single = dict(env_dict.ALL_V3_ENVIRONMENTS)
        if benchmark_name.lower() in suites:
            classes = suites[benchmark_name.lower()]
        else:
            if benchmark_name.endswith("-v2") and f"{benchmark_name[:-3]}-v3" in single:
                warnings.warn(
                    f"Meta-World 3 has no {benchmark_name!r}: using {benchmark_name[:-3]}-v3", stacklevel=2
                )
                benchmark_name = f"{benchmark_name[:-3]}-v3"
            if benchmark_name not in single:
                raise ValueError(
                    f"benchmark_name must be one of {', '.join(suites)} or the name of a task such as reach-v3, "
                    f"got {benchmark_name!r}.{did_you_mean(benchmark_name, [*suites, *single])}"
                )
            only = {benchmark_name: single[benchmark_name]}
            classes = {"train": only, "test": only}
            self._seeds["test"] = seed + 1
        self.train_classes: dict[str, Any] = dict(classes["train"])
        self.test_classes: dict[str, Any] = dict(classes["test"])

    def tasks_of(self, split: str, name: str) -> tuple[Any, ...]:
        """The 50 tasks of a class; simulates them when they are first asked for."""
        return _draw_tasks(name, self._seeds[split])


class KEpisodeMetaworld(gym.Env[Observation, npt.NDArray[np.float32]]):
    """k attempts at one task of Meta-World; each reset draws a class and one of its tasks, uniformly.

    Observation, float32 (40,): Meta-World's 39 numbers (18 of this step, 18 of the step before, and 3 zeros in
    place of the goal), then 1 in the first observation of an attempt and 0 otherwise. Actions: Box(-1, 1, (4,)),
    three of the hand's motion and one of the gripper. Reward: Meta-World's, at most 10, times `reward_scales`.

    An attempt takes `max_episode_length` steps; a success does not end it. The step that ends an attempt returns
    the first observation of the next one. The last attempt's end is both terminated and truncated, with its true
    last observation. Metrics: "Trial {i} Success" (0 or 1, i from 0) at the end of attempt i, and "Total
    Successes" at the last one.

    A simulator is built when its class is first drawn.

    Args:
        benchmark: a LazyBenchmark, or a benchmark of the metaworld package.
        split: "train" or "test".
        k_episodes: attempts per task.
        max_episode_length: steps per attempt, at most 500.
        render_mode: of the simulators.

    Attributes:
        reward_scales: factor on the reward by task name, to be filled by users; 1 if missing. "reach-v2" counts
            for "reach-v3" too.
        env_name: name of the class being played.

    Raises:
        ValueError: if an argument is out of range, or the split has no tasks.
    """

    reward_scales: ClassVar[dict[str, float]] = {}

    @check_arguments
    def __init__(
        self,
        benchmark: Any,
        split: Literal["train", "test"],
        k_episodes: Size,
        max_episode_length: Annotated[Size, Le(LONGEST_ATTEMPT)] = LONGEST_ATTEMPT,
        render_mode: str | None = None,
    ) -> None:
        self.k_episodes = k_episodes
        self.max_episode_length = max_episode_length
        self.benchmark = benchmark
        self.split = split
        self.render_mode = render_mode
        self._classes: Mapping[str, Any] = getattr(benchmark, f"{split}_classes")
        self._tasks: dict[str, list[Any]] = {}
        if isinstance(benchmark, LazyBenchmark):
            self._names = list(self._classes)
        else:
            for task in getattr(benchmark, f"{split}_tasks"):
                self._tasks.setdefault(task.env_name, []).append(task)
            self._names = list(self._tasks)
        if not self._names:
            raise ValueError(f"the benchmark {type(benchmark).__name__} has no tasks in its {split} split")
        self._simulators: dict[str, Any] = {}
        self.env_name: str = self._names[0]
        low, high = np.full(40, -np.inf, np.float32), np.full(40, np.inf, np.float32)
        low[-1], high[-1] = 0.0, 1.0
        self.observation_space = gym.spaces.Box(low, high)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draws a task and starts its first attempt. A seed fixes this and all later draws."""
        super().reset(seed=seed)
        self.env_name = name = self._names[self.np_random.integers(len(self._names))]
        if name not in self._tasks:
            self._tasks[name] = list(self.benchmark.tasks_of(self.split, name))
        if name not in self._simulators:
            self._simulators[name] = self._classes[name](render_mode=self.render_mode)
        self._simulator = self._simulators[name]
        self._simulator.set_task(self._tasks[name][self.np_random.integers(len(self._tasks[name]))])
        self._scale = self.reward_scales.get(name, self.reward_scales.get(f"{name[:-3]}-v2", 1.0))
        self._successes: list[float] = []
        self._running = True
        return self._start_attempt(), {}

    def _start_attempt(self) -> Observation:
        self._steps = 0
        self._success = 0.0
        return self._observe(self._simulator.reset()[0], True)

    def step(self, action: npt.NDArray[np.float32]) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Moves the arm, and starts the next attempt when this one has taken its steps."""
        if not self._running:
            raise RuntimeError("KEpisodeMetaworld.step needs a running episode: call reset() first")
        obs, reward, _, _, step_info = self._simulator.step(action)
        reward = float(reward) * self._scale
        self._steps += 1
        self._success = max(self._success, float(step_info["success"]))
        if self._steps < self.max_episode_length:
            return self._observe(obs, False), reward, False, False, {}
        key = f"{AMAGO_ENV_LOG_PREFIX} Trial {len(self._successes)} Success"
        info: dict[str, Any] = {key: self._success}
        self._successes.append(self._success)
        if len(self._successes) < self.k_episodes:
            return self._start_attempt(), reward, False, False, info
        info[f"{AMAGO_ENV_LOG_PREFIX} Total Successes"] = sum(self._successes)
        self._running = False
        return self._observe(obs, False), reward, True, True, info

    def _observe(self, obs: npt.NDArray[np.float64], first: bool) -> Observation:
        vector = np.empty(40, np.float32)
        vector[:39] = obs
        vector[39] = first
        return vector

    def render(self) -> Any:
        return self._simulator.render()

    def close(self) -> None:
        for simulator in self._simulators.values():
            simulator.close()


class Metaworld(AMAGOEnv):
    """`KEpisodeMetaworld` for agents; `env_name` is the class being played, for example "reach-v3".

    Args:
        benchmark_name: "ml10", "ml25", "ml45", or the name of a class ("reach-v3") for ML1, whose test split has
            other goals of the same class.
        split: "train" or "test".
        k_episodes: attempts per task; an episode takes 500 steps per attempt.
        benchmark_seed: of the goals. The default gives all actors and runs the same 50 goals per class; None gives
            every environment its own.

    Raises:
        ImportError: if metaworld is not installed.
        ValueError: for an unknown benchmark or split, or `k_episodes` below 1.
    """

    @check_arguments
    def __init__(
        self,
        benchmark_name: str,
        split: Literal["train", "test"],
        k_episodes: Size,
        benchmark_seed: Count | None = 0,
    ) -> None:
        self.k_episode_env = KEpisodeMetaworld(
            LazyBenchmark(benchmark_name, benchmark_seed), split, k_episodes
        )
        super().__init__(self.k_episode_env)
