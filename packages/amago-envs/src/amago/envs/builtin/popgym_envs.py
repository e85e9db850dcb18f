"""POPGym: memory tasks (Morad et al. 2023), one at a time or 27 of them behind one interface.

Needs popgym; tested with 1.0.7. `POPGymAMAGO` and `MultiDomainPOPGymAMAGO` are the environments for agents.
"""

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import Count, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.observations import extend_box_obs_space_by
from amago.envs.registry import did_you_mean

Vector = npt.NDArray[np.float32]
Write = Callable[[Any, Vector], None]
TIME_SCALE = 1000  # steps; the longest task has 831
LEVELS = ("Easy", "Medium", "Hard")


def make_popgym_env(env_name: str) -> gym.Env[Any, Any]:
    """The environment of popgym with the id `env_name`, without wrappers.

    Raises:
        ImportError: if popgym is not installed.
        ValueError: if popgym has no such id.
    """
    classes = {spec["id"]: cls for cls, spec in optional_import("popgym.envs", extra="popgym").ALL.items()}
    if env_name not in classes:
        raise ValueError(
            f"env_name must be the id of a POPGym environment, such as popgym-RepeatPreviousEasy-v0, got "
            f"{env_name!r}.{did_you_mean(env_name, classes)}"
        )
    env: gym.Env[Any, Any] = classes[env_name]()
    return env


def flat_box(space: gym.Space[Any]) -> gym.spaces.Box:
    """The space of a flattened observation: Discrete as one-hot, MultiDiscrete as one-hots of equal length."""
    if isinstance(space, gym.spaces.Tuple):
        parts = [flat_box(part) for part in space.spaces]
        return gym.spaces.Box(
            np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts])
        )
    if isinstance(space, gym.spaces.Box):
        return gym.spaces.Box(space.low.reshape(-1), space.high.reshape(-1), dtype=np.float32)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return gym.spaces.Box(0.0, 1.0, (space.nvec.size * int(space.nvec.max()),), np.float32)
    assert isinstance(space, gym.spaces.Discrete), space
    return gym.spaces.Box(0.0, 1.0, (int(space.n),), np.float32)


def flat_writer(space: gym.Space[Any]) -> Write:
    """A function that writes an observation of `space` into a vector of zeros, as `flat_box` says."""
    if isinstance(space, gym.spaces.Tuple):
        sizes = [flat_box(part).shape[0] for part in space.spaces]
        ends = np.cumsum(sizes).tolist()
        parts = [
            (flat_writer(part), end - size, end)
            for part, size, end in zip(space.spaces, sizes, ends, strict=True)
        ]

        def write(value: Any, out: Vector) -> None:
            for part_value, (write_part, start, end) in zip(value, parts, strict=True):
                write_part(part_value, out[start:end])

    elif isinstance(space, gym.spaces.MultiDiscrete):
        starts = np.arange(space.nvec.size) * int(space.nvec.max())

        def write(value: Any, out: Vector) -> None:
            out[starts + value] = 1.0

    elif isinstance(space, gym.spaces.Discrete):

        def write(value: Any, out: Vector) -> None:
            out[value] = 1.0

    else:

        def write(value: Any, out: Vector) -> None:
            out[: value.size] = value.reshape(-1)

    return write


class POPGym(gym.Wrapper[Any, Any, Any, Any]):
    """One POPGym environment with flat observations, a clock, and Discrete or Box actions.

    Observation, float32 (d + 1,): popgym's own, flattened, Discrete as one-hot and MultiDiscrete as one-hots in a
    row; then steps / 1000. Actions: Discrete, with MultiDiscrete numbered in row-major order, or Box. Rewards are
    popgym's; an episode's return lies in [-1, 1]. Episodes end by termination or, at the step limits of Pendulum,
    Bandit, Concentration, Battleship, MineSweeper and CartPole, by truncation. No metrics; `info` is popgym's.

    Args:
        env_name: id such as "popgym-MineSweeperMedium-v0".
        truncated_is_done: set `terminated` too when an episode is truncated, as popgym did before it told them
            apart.

    Raises:
        ImportError: if popgym is not installed.
        ValueError: if popgym has no such id.
    """

    @check_arguments
    def __init__(self, env_name: str, truncated_is_done: bool = True) -> None:
        env = make_popgym_env(env_name)
        super().__init__(env)
        self.env_name = env_name
        self.truncated_is_done = truncated_is_done
        flat = flat_box(env.observation_space)
        self._size = flat.shape[0]
        self._write = flat_writer(env.observation_space)
        self.observation_space = extend_box_obs_space_by(flat, 1, 0.0, 1.0)
        self._nvec: tuple[int, ...] | None = None
        if isinstance(env.action_space, gym.spaces.MultiDiscrete):
            self._nvec = tuple(env.action_space.nvec.tolist())
            self.action_space = gym.spaces.Discrete(math.prod(self._nvec))
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Starts an episode; a seed makes it reproducible."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self._observe(obs), info

    def step(self, action: Any) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        if self._nvec is not None:
            action = np.unravel_index(int(action), self._nvec)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        terminated = bool(terminated or (truncated and self.truncated_is_done))
        return self._observe(obs), float(reward), terminated, bool(truncated), info

    def _observe(self, obs: Any) -> Vector:
        vector = np.zeros(self._size + 1, np.float32)
        self._write(obs, vector)
        vector[self._size] = self._steps / TIME_SCALE
        return vector


class POPGymAMAGO(AMAGOEnv):
    """`POPGym` for agents; its `env_name` is the id as given. Arguments and errors are those of `POPGym`."""

    @check_arguments
    def __init__(self, env_name: str, truncated_is_done: bool = True) -> None:
        super().__init__(POPGym(env_name, truncated_is_done), env_name)


class MultiDomainPOPGym(gym.Env[Vector, int]):
    """27 POPGym tasks with one observation and action space; each reset draws one of them uniformly.

    A task is played `warmup_episodes` times without reward and then once for its reward, with new cards, boards
    and so on in each attempt. When an attempt ends, the next step ignores its action, has reward 0 and returns the
    first observation of a new attempt; after the last attempt that step terminates the episode. Never truncated.

    Observation, float32 (30,): in the first 26 places the task's own, flattened as in `POPGym`, then zeros;
    [26] steps / 1000 since reset; [27] attempt / warmup_episodes, attempts counted from 0; [28] 1 if the last
    action was valid; [29] the true reward of this step, in warm-up too. Within [-5, 5]; [26] may be larger with
    six or more warm-up attempts. Actions: Discrete(26). An action that the task does not have is replaced by a
    random one that it has. popgym 1.0.7 has 27 actions in CountRecall Easy and Medium: the answer 26 cannot be
    given. No metrics; `info` is popgym's.

    Environments are built when their task is first drawn.

    Args:
        warmup_episodes: attempts without reward, at least 0 (then [27] is the attempt).

    Attributes:
        mt_names: names of the tasks, such as "AutoencodeEasy"; `current_task` is the one being played.

    Raises:
        ImportError: if popgym is not installed.
        ValueError: if `warmup_episodes` is negative.
    """

    SIZE = 26
    NUM_ACTIONS = 26
    ALL_LEVELS = (
        "Autoencode",
        "RepeatPrevious",
        "RepeatFirst",
        "CountRecall",
        "PositionOnlyCartPole",
        "VelocityOnlyCartpole",
        "NoisyPositionOnlyCartPole",
        "HigherLower",
    )
    mt_names = (
        *(name + level for name in ALL_LEVELS for level in LEVELS),
        "MultiarmedBanditEasy",
        "MultiarmedBanditMedium",
        "MineSweeperEasy",
    )

    @check_arguments
    def __init__(self, warmup_episodes: Count = 1) -> None:
        optional_import("popgym.envs", extra="popgym")
        self.warmup_episodes = warmup_episodes
        high = np.full(self.SIZE + 4, 5.0, np.float32)
        high[self.SIZE] = max(5.0, (warmup_episodes + 1) * 832 / TIME_SCALE)
        self.observation_space = gym.spaces.Box(np.full_like(high, -5.0), high)
        self.action_space = gym.spaces.Discrete(self.NUM_ACTIONS)  # type: ignore[assignment]
        self._envs: dict[str, POPGym] = {}
        self.current_task = self.mt_names[0]
        self._running = False

    @property
    def env_name(self) -> str:
        return f"MultiDomainPOPGym-{self.current_task}"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """Draws a task and starts its first attempt. A seed fixes this and all later draws."""
        super().reset(seed=seed)
        self.current_task = self.mt_names[self.np_random.integers(len(self.mt_names))]
        if self.current_task not in self._envs:
            self._envs[self.current_task] = POPGym(f"popgym-{self.current_task}-v0")
        self._env = self._envs[self.current_task]
        self._num_actions = int(self._env.action_space.n)  # type: ignore[attr-defined] # all are Discrete
        self._steps = self._attempt = 0
        self._running = True
        return self._start_attempt()

    def _start_attempt(self) -> tuple[Vector, dict[str, Any]]:
        self._attempt_over = False
        obs, info = self._env.reset(seed=int(self.np_random.integers(2**31)))
        return self._observe(obs, True, 0.0), info

    def step(self, action: int) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Plays one action, or starts the next attempt when the last step ended one."""
        if not self._running:
            raise RuntimeError("MultiDomainPOPGym.step needs a running episode: call reset() first")
        if not 0 <= action < self.NUM_ACTIONS:
            raise ValueError(f"action must be from 0 to {self.NUM_ACTIONS - 1}, got {action}")
        self._steps += 1
        if self._attempt_over:
            self._attempt += 1
            obs, info = self._start_attempt()
            self._running = self._attempt <= self.warmup_episodes
            return obs, 0.0, not self._running, False, info
        valid = action < self._num_actions
        if not valid:
            action = int(self.np_random.integers(self._num_actions))
        obs, reward, terminated, truncated, info = self._env.step(action)
        self._attempt_over = terminated or truncated
        counts = self._attempt == self.warmup_episodes
        return self._observe(obs, valid, reward), reward if counts else 0.0, False, False, info

    def _observe(self, obs: Vector, valid: bool, reward: float) -> Vector:
        vector = np.zeros(self.SIZE + 4, np.float32)
        vector[: obs.size - 1] = obs[:-1]  # without the attempt's own clock
        attempt = self._attempt / max(self.warmup_episodes, 1)
        vector[self.SIZE :] = (self._steps / TIME_SCALE, attempt, valid, reward)
        return vector

    def render(self) -> Any:
        return self._env.render()

    def close(self) -> None:
        for env in self._envs.values():
            env.close()


class MultiDomainPOPGymAMAGO(AMAGOEnv):
    """`MultiDomainPOPGym` for agents; `env_name` is for example "MultiDomainPOPGym-AutoencodeEasy"."""

    @check_arguments
    def __init__(self, warmup_episodes: Count = 1) -> None:
        self.multi_domain = MultiDomainPOPGym(warmup_episodes)
        super().__init__(self.multi_domain)
