"""XLandMinigridVectorizedGym: k attempts at tasks of XLand-MiniGrid, which steps many environments inside jax.

Needs xminigrid, which installs jax; tested with xminigrid 0.9.3 and jax 0.10.2. What `gymnax_envs` says of jax on
a GPU and in processes holds here as well.

N = `parallel_envs`, k = `k_episodes`.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Lt

from amago.envs.arguments import Count, Size, check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

SPLITS = ("train", "test")
MAX_ID = 14  # largest id of a tile, a color or an entry of a goal
VIEW = 5  # cells on a side of the agent's view


class XLandMinigridVectorizedGym(gym.Env[Any, Any]):
    """N grids that step together and reset themselves, each with k attempts at one ruleset.

        env = XLandMinigridVectorizedGym(parallel_envs=64, rooms=1, grid_size=9)
        AMAGOEnv(env, env_name="xland", batched_envs=64)

    The spaces are those of one grid; observations, actions and results have the leading axis N. With
    `parallel_envs=1` it is an ordinary environment without that axis, which its user resets.

    - Observation: `grid` uint8 (5, 5, 2) in [0, 14], ids of tile and color in the agent's view; `direction_done`
      float32 (5,) in [0, 1], one-hot direction and 1 on the last step of an attempt; `goal` uint8 (5,) in [0, 14],
      the encoded goal. The rules are hidden.
    - Actions: Discrete(6): forward, turn right, turn left, pick up, put down, toggle.
    - Reward: 1 - 0.9 t / max_steps for reaching the goal after t steps, else 0.
    - An attempt ends at the goal or after 3 grid_size² steps. The next step, whatever its action, starts the next
      one with the same ruleset and other positions. In that step after the k-th attempt, the episode is terminated
      and truncated, and a new ruleset is drawn: the observation is the first one of the next episode, and
      `info["final_obs"]` has that of one more attempt.
    - Metrics: `Ep {i} Return`, i from 0, in the step after attempt i.

    Args:
        parallel_envs: N.
        k_episodes: k.
        rooms: 1, 2, 4, 6 or 9 rooms.
        grid_size: cells on a side: 9, 11, 13, 15, 17 for up to 4 rooms; 13, 17, 19 for 6; 16, 19, 25 for 9.
        ruleset_benchmark: a `xminigrid.benchmarks.Benchmark`, or the name of one: trivial-21k, small-1m,
            medium-1m, medium-3m, high-1m, high-3m. xminigrid downloads a named one on first use, into the folder
            XLAND_MINIGRID_DATA, and unpickles the file; to read no pickle, pass a Benchmark.
        train_test_split: "train" or "test": the part of the rulesets that are drawn.
        train_test_split_key: seed of the division of the rulesets.
        train_test_split_pct: share of the rulesets that are for training, in (0, 1).

    Attributes:
        max_steps_per_episode: steps of an attempt.
        suggested_max_seq_len: (max_steps_per_episode + 1) k, the longest episode.
        current_episode: (N,) int64, the running attempt of each grid, from 0.
        episode_return: (N,) float64, return of the running attempt so far.

    Raises:
        ImportError: if xminigrid is not installed.
        ValueError: for an unknown grid, benchmark or split, a number out of range, or a split without rulesets.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    @check_arguments
    def __init__(
        self,
        parallel_envs: Size,
        k_episodes: Size = 25,
        rooms: Size = 4,
        grid_size: Size = 13,
        ruleset_benchmark: Any = "small-1m",
        train_test_split: Literal["train", "test"] = "train",
        train_test_split_key: Count = 0,
        train_test_split_pct: Annotated[float, Gt(0), Lt(1)] = 0.8,
    ) -> None:
        xminigrid: Any = optional_import("xminigrid", extra="xland")
        self._jax: Any = optional_import("jax", extra="xland")
        self.parallel_envs = parallel_envs
        self.k_episodes = k_episodes
        name = f"XLand-MiniGrid-R{rooms}-{grid_size}x{grid_size}"
        if name not in xminigrid.registered_environments():
            grids = [each for each in xminigrid.registered_environments() if each.startswith("XLand-")]
            raise ValueError(f"rooms={rooms} and grid_size={grid_size} are not one of {', '.join(grids)}")
        benchmark = _load_benchmark(xminigrid, ruleset_benchmark)
        parts = benchmark.shuffle(self._jax.random.key(train_test_split_key)).split(train_test_split_pct)
        self.benchmark = parts[SPLITS.index(train_test_split)]
        if self.benchmark.num_rulesets() == 0:
            raise ValueError(
                f"the {train_test_split} split has none of the benchmark's {benchmark.num_rulesets()} rulesets: "
                f"change train_test_split_pct={train_test_split_pct}"
            )
        self._xland = _compiled(name)
        self.env_params = self._xland.params
        self.max_steps_per_episode = int(self.env_params.max_steps)
        self.suggested_max_seq_len = (self.max_steps_per_episode + 1) * self.k_episodes
        self.observation_space = gym.spaces.Dict(
            {
                "grid": gym.spaces.Box(0, MAX_ID, (VIEW, VIEW, 2), np.uint8),
                "direction_done": gym.spaces.Box(0.0, 1.0, (5,), np.float32),
                "goal": gym.spaces.Box(0, MAX_ID, (5,), np.uint8),
            }
        )
        self.action_space = gym.spaces.Discrete(int(self._xland.env.num_actions(self.env_params)))
        self.current_episode: npt.NDArray[np.int64] = np.zeros(self.parallel_envs, np.int64)
        self.episode_return: npt.NDArray[np.float64] = np.zeros(self.parallel_envs, np.float64)
        self._key: Any = None
        self._timestep: Any = None

    def new_reset_keys(self) -> Any:
        """N new random keys."""
        self._key, keys = self._xland.split_keys(self._key, self.parallel_envs + 1)
        return keys

    def new_ruleset_keys(self) -> Any:
        """N new random keys."""
        return self.new_reset_keys()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draws a ruleset for every grid and starts its first attempt; a seed fixes all that follows."""
        super().reset(seed=seed)
        if seed is not None or self._key is None:
            self._key = self._jax.random.key(int(self.np_random.integers(2**32)))
        self._rulesets = self._xland.sample_rulesets(self.benchmark, self.new_ruleset_keys())
        self._timestep = self._xland.reset(self._rulesets, self.new_reset_keys())
        self.current_episode[:] = 0
        self.episode_return[:] = 0.0
        self._attempt_over = np.zeros(self.parallel_envs, np.bool_)
        return self._without_row_axis(self.get_obs()), {}

    def get_obs(self) -> dict[str, npt.NDArray[Any]]:
        """The current observations, with the leading axis N."""
        obs, last = self._jax.device_get((self._timestep.observation, self._timestep.last()))
        return {
            "grid": obs["img"].astype(np.uint8),
            "direction_done": np.concatenate((obs["direction"], last[:, None]), axis=1, dtype=np.float32),
            "goal": obs["goal_encoding"].astype(np.uint8),
        }

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps every grid; grids whose episode ends get a new ruleset.

        Raises:
            RuntimeError: before the first reset.
            ValueError: unless there are N actions.
        """
        if self._timestep is None:
            raise RuntimeError("step was called before the first reset: call reset() first")
        actions = np.asarray(action)
        if actions.size != self.parallel_envs:
            raise ValueError(
                f"actions have shape {actions.shape}; give one for each of {self.parallel_envs} grids"
            )
        starting = self._attempt_over  # these grids start their next attempt in this step
        self._timestep = self._xland.step(self._rulesets, self._timestep, actions.reshape(self.parallel_envs))
        last, reward = self._jax.device_get((self._timestep.last(), self._timestep.reward))
        reward = np.where(starting, 0.0, reward).astype(np.float32)
        self.episode_return += reward
        info: dict[str, Any] = {}
        for attempt in np.unique(self.current_episode[starting]):
            ended = starting & (self.current_episode == attempt)
            returns = np.where(ended, self.episode_return, np.nan)
            info[f"{AMAGO_ENV_LOG_PREFIX} Ep {attempt} Return"] = self._without_row_axis(returns)
        self.episode_return[starting] = 0.0
        self.current_episode[starting] += 1
        self._attempt_over = np.array(last, np.bool_)
        done = self.current_episode >= self.k_episodes
        if self.parallel_envs > 1 and done.any():
            info["final_obs"] = self.get_obs()
            self.reset_if_done(done)
        done = self._without_row_axis(done)
        return self._without_row_axis(self.get_obs()), self._without_row_axis(reward), done, done, info

    def reset_if_done(self, is_done: npt.NDArray[np.bool_]) -> None:
        """Draws new rulesets for some grids and starts their first attempts; `is_done` is (N,) bool."""
        rulesets = self._xland.sample_rulesets(self.benchmark, self.new_ruleset_keys())
        fresh = self._xland.reset(rulesets, self.new_reset_keys())
        self._rulesets = self._xland.select(is_done, rulesets, self._rulesets)
        self._timestep = self._xland.select(is_done, fresh, self._timestep)
        self.current_episode[is_done] = 0
        self.episode_return[is_done] = 0.0
        self._attempt_over[is_done] = False

    def _without_row_axis(self, arrays: Any) -> Any:
        """Results without the leading axis N if N is 1, else as they are."""
        if self.parallel_envs > 1:
            return arrays
        return {key: array[0] for key, array in arrays.items()} if isinstance(arrays, dict) else arrays[0]

    def render(self, env_idx: int = 0) -> npt.NDArray[np.uint8]:
        """An RGB image (H, W, 3) of one grid; RuntimeError before the first reset."""
        if self._timestep is None:
            raise RuntimeError("there is nothing to render before the first reset: call reset() first")
        timestep = self._jax.tree.map(lambda rows: rows[env_idx], self._timestep)
        return np.asarray(self._xland.env.render(self.env_params, timestep))


class _Compiled(NamedTuple):
    """An environment of xminigrid, and its functions over N grids; `params` are without a ruleset."""

    env: Any
    params: Any
    reset: Callable[..., Any]
    step: Callable[..., Any]
    sample_rulesets: Callable[..., Any]
    select: Callable[..., Any]
    split_keys: Callable[..., Any]


@functools.cache
def _compiled(name: str) -> _Compiled:
    """Compiles an environment once for all objects of a process, as it takes seconds."""
    jax: Any = optional_import("jax", extra="xland")
    xminigrid: Any = optional_import("xminigrid", extra="xland")
    wrappers: Any = optional_import("xminigrid.wrappers", extra="xland")
    env, params = xminigrid.make(name)
    env = wrappers.RulesAndGoalsObservationWrapper(
        wrappers.DirectionObservationWrapper(wrappers.DmEnvAutoResetWrapper(env))
    )

    def reset(ruleset: Any, key: Any) -> Any:
        return env.reset(params.replace(ruleset=ruleset), key)

    def step(ruleset: Any, timestep: Any, action: Any) -> Any:
        return env.step(params.replace(ruleset=ruleset), timestep, action)

    def sample_ruleset(benchmark: Any, key: Any) -> Any:
        return benchmark.sample_ruleset(key)

    def select(mask: Any, new: Any, old: Any) -> Any:
        def one(new: Any, old: Any) -> Any:
            return jax.numpy.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        return jax.tree.map(one, new, old)

    def split_keys(key: Any, count: int) -> tuple[Any, Any]:
        keys = jax.random.split(key, count)
        return keys[0], keys[1:]

    return _Compiled(
        env=env,
        params=params,
        reset=jax.jit(jax.vmap(reset)),
        step=jax.jit(jax.vmap(step)),
        sample_rulesets=jax.jit(jax.vmap(sample_ruleset, in_axes=(None, 0))),
        select=jax.jit(select),
        split_keys=jax.jit(split_keys, static_argnums=1),
    )


def _load_benchmark(xminigrid: Any, benchmark: Any) -> Any:
    if not isinstance(benchmark, str):
        if not hasattr(benchmark, "sample_ruleset"):
            raise TypeError(
                f"ruleset_benchmark must be a name or a Benchmark of xminigrid, got {benchmark!r}"
            )
        return benchmark
    if benchmark not in xminigrid.registered_benchmarks():
        known = ", ".join(xminigrid.registered_benchmarks())
        raise ValueError(f"ruleset_benchmark is {benchmark!r}, not one of {known}")
    return xminigrid.load_benchmark(benchmark)
