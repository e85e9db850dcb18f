"""AMAGOEnv: the interface of policies, exploration and recording to any environment.

It maps observations to a dict of arrays and actions to and from the policy's form, and returns `Timestep`s. After
an episode's end the vector environment resets it.

E = environments behind one AMAGOEnv (`batched_envs`), A = width of the action representation.
"""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.actions import make_action_codec
from amago.envs.arguments import Name, Size, check_arguments
from amago.envs.gymnasium_compat import RESET_ROWS, ForwardingWrapper, adapt_vector_env, find_owner
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX, ReturnHistory, SpecialMetricHistory
from amago.envs.observations import ObservationMapper
from amago.envs.space_json import space_as_json
from amago.hindsight import Array, Timestep

if TYPE_CHECKING:
    from amago.envs.recorder import EnvCreator as EnvCreator
    from amago.envs.recorder import SequenceWrapper as SequenceWrapper

__all__ = [
    "AMAGO_ENV_LOG_PREFIX",
    "AMAGOEnv",
    "EnvCreator",
    "ReturnHistory",
    "SequenceWrapper",
    "SpecialMetricHistory",
]

StepResult = tuple[
    Timestep, npt.NDArray[np.float32], npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]
]


class AMAGOEnv(ForwardingWrapper):
    """Wraps a gymnasium environment for policies that see a dict of arrays, previous actions and rewards.

    A subclass may override `inner_reset`, `inner_step`, `env_name`, `reset`, `step` and `make_action_rep`. It may
    add observations: it sets `self.observation_space[key] = space` after `super().__init__()` and returns the key
    from `inner_reset` and `inner_step` (an observation that is not a dict becomes the key "observation" of one).

    An override of `step` may add metrics to `info`. It may catch an exception of its game, call `self.reset()`,
    and return the timestep of that reset with truncated True: the episode then ends with the step before.

    Args:
        env: the environment. Action spaces: Discrete, MultiDiscrete, MultiBinary, bounded Box. Observation spaces:
            those, unbounded Boxes, Text, minigrid's MissionSpace, and any nesting of Dict and Tuple. It may be a
            gymnasium VectorEnv of `batched_envs` rows, in any autoreset mode.
        env_name: name for logs and files. None reads the attribute `env_name` of the environment or a wrapper
            inside, at each use because multi-task environments change it between resets; without such an
            attribute, the id of the environment's spec or its class name.
        batched_envs: E. If more than 1, `env` itself steps that many environments: its spaces describe one of
            them, and all inputs and outputs have the leading axis E. It resets its environments itself, and
            returns the first observation of the new episode in the step that ends one.

    Attributes:
        env: the environment.
        batched_envs: E.
        observation_space: Dict of Boxes, of one environment.
        action_space: of the policy: Discrete from 0, MultiDiscrete, MultiBinary or Box(-1, 1, (A,)).
        rl2_space: Box of shape (1 + A,): previous reward, previous action.
        discrete: whether `action_space` is Discrete.
        multibinary: whether `action_space` is MultiBinary.
        action_size: A, the width of an action's representation.

    Raises:
        TypeError: if `env` is not a gymnasium environment, `env_name` not a string, or a space is not supported.
        ValueError: for an unbounded Box of actions, or `batched_envs` below 1.
    """

    @check_arguments
    def __init__(self, env: gym.Env[Any, Any], env_name: Name | None = None, batched_envs: Size = 1) -> None:
        env = adapt_vector_env(env, batched_envs)
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"env is a {type(env).__module__}.{type(env).__name__}, not a gymnasium.Env; environments of the "
                "older gym interface can be converted with the shimmy package"
            )
        super().__init__(env)
        self.batched_envs = int(batched_envs)
        self._env_name = env_name
        self._name_owner: Any | None = None
        self._codec = make_action_codec(env.action_space, self.batched_envs)
        self.action_space = self._codec.policy_space
        self._inner_mapper = ObservationMapper(env.observation_space, self.batched_envs)
        self.observation_space = gym.spaces.Dict(dict(self._inner_mapper.space.spaces))
        self.rl2_space = gym.spaces.Box(-np.inf, np.inf, (1 + self._codec.width,), np.float32)
        self.discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self.multibinary = isinstance(self.action_space, gym.spaces.MultiBinary)
        self.action_size = self._codec.width
        self._time_idx: npt.NDArray[np.int64] = np.zeros(self.batched_envs, dtype=np.int64)
        # (1,) view of the counter of a BatchedStepper, which does not call `step`; else None
        self.shared_step_count: npt.NDArray[np.int64] | None = None
        # Only an overridden representation checks the action a second time.
        self._own_action_rep = type(self).make_action_rep is not AMAGOEnv.make_action_rep

    @functools.cached_property
    def _map_obs(self) -> ObservationMapper:
        """Maps observations; made at the first use, when subclasses have edited the space."""
        return self._make_mapper(self.batched_envs)

    @functools.cached_property
    def _map_one_obs(self) -> ObservationMapper:
        return self._make_mapper(1)

    def _make_mapper(self, batched_envs: int) -> ObservationMapper:
        mapped = self._inner_mapper.space.spaces
        assert isinstance(self.observation_space, gym.spaces.Dict)
        edits = {
            key: None if space is mapped.get(key) else space
            for key, space in self.observation_space.spaces.items()
        }
        return ObservationMapper(self.env.observation_space, batched_envs, edits)

    @property
    def mapped_observation_space(self) -> gym.spaces.Dict:
        """`observation_space` as a Dict of Boxes, the keys that a subclass has added or replaced included."""
        return self._map_obs.space

    @property
    def spaces_as_json(self) -> dict[str, Any]:
        """Spaces of what the environment returns and takes, "observation" and "action", for run.json.

        The observation space of a subclass that edits `observation_space` is the edited one.
        """
        edited = self._map_obs.space != self._inner_mapper.space
        observed = self._map_obs.space if edited else self.env.observation_space
        return {"observation": space_as_json(observed), "action": space_as_json(self.env.action_space)}

    @property
    def step_count(self) -> npt.NDArray[np.int64]:
        """(E,) int64, steps since the start of each running episode."""
        counts = self._time_idx if self.shared_step_count is None else self.shared_step_count
        return np.array(counts)

    @property
    def env_name(self) -> str:
        """The current name, e.g. of the task that a multi-task environment plays in this episode."""
        if self._env_name is not None:
            return self._env_name
        if self._name_owner is None:
            self._name_owner = find_owner(self.env, "env_name")
        if self._name_owner is not None:
            return str(self._name_owner.env_name)
        spec = self.env.spec
        return spec.id if spec is not None else type(self.env.unwrapped).__name__

    @property
    def name_is_fixed(self) -> bool:
        """Whether `env_name` was given and therefore never changes."""
        return self._env_name is not None and type(self).env_name is AMAGOEnv.env_name

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """Renders the environment; arguments are those of its own `render`."""
        return self.env.render(*args, **kwargs)

    def make_action_rep(self, action: Any) -> npt.NDArray[np.float32]:
        """The representation (E, A) float32 of a policy action that is recorded and fed back to the policy.

        Raises:
            ValueError: if the action is outside `action_space`.
        """
        return self._codec.represent(self._codec.check(action))

    def inner_reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Resets the wrapped environment: `(observation, info)` in its own form. Subclasses may override it.

        An environment whose `reset` takes no seed is reset without one, and its `np_random` is seeded instead.
        """
        arguments: dict[str, Any] = {"seed": seed, "options": options}
        for name in self._unknown_to_reset:
            if arguments[name] is None:
                del arguments[name]
        if seed is not None and "seed" in self._unknown_to_reset:
            del arguments["seed"]
            self.env.unwrapped.np_random = np.random.default_rng(seed)
        return self.env.reset(**arguments)

    @functools.cached_property
    def _unknown_to_reset(self) -> list[str]:
        """Those of `seed` and `options` that the environment's `reset` does not take; warns of a missing seed."""
        parameters = inspect.signature(self.env.reset).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return []
        unknown = [name for name in ("seed", "options") if name not in parameters]
        if "seed" in unknown:
            warnings.warn(
                f"{type(self.env).__name__}.reset() takes no seed, so only randomness from np_random is "
                "reproducible: define reset(self, *, seed=None, options=None)",
                stacklevel=2,
            )
        return unknown

    def inner_step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the wrapped environment; action and results in its own form. Subclasses may override it."""
        return self.env.step(action)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Timestep, dict[str, Any]]:
        """Starts an episode in every environment.

        Args:
            seed: seed of the environment; None keeps its random state.
            options: passed on to the environment.

        Returns:
            The first timestep, with reward, action, time and terminal zero, and the environment's info.

        Raises:
            TypeError: if the environment does not return `(observation, info)`.
        """
        obs, info = self._check_result(
            "reset", self.inner_reset(seed=seed, options=options), "(observation, info)"
        )
        num_envs = self.batched_envs
        self._time_idx = np.zeros(num_envs, dtype=np.int64)
        timestep = Timestep(
            self._map_obs(obs),
            np.zeros((num_envs, self._codec.width), dtype=np.float32),
            np.zeros(num_envs, dtype=np.float32),
            np.zeros(num_envs, dtype=np.int64),
            np.zeros(num_envs, dtype=np.bool_),
            num_envs,
        )
        return timestep, info

    def step(self, action: Any) -> StepResult:  # type: ignore[override] # one value per environment, not one
        """Takes one step.

        Args:
            action: in `action_space`, with a leading axis E: (E, 1) or (E,) for Discrete, else (E, K) or (E, A).

        Returns:
            `(timestep, reward (E,) float32, terminated (E,) bool, truncated (E,) bool, info)`. The timestep of a
            batched environment has the reward and time of the step that ended an episode; its
            `create_reset_version` is the first timestep of the next one. Time 0 marks rows that were reset in
            this step and did nothing else (autoreset mode NEXT_STEP).

        Raises:
            ValueError: if the action is outside `action_space`, the observation does not fit its space, or the
                reward is not finite.
            TypeError: if the environment does not return gymnasium's five results.
        """
        codec = self._codec
        checked = codec.check(action)
        prev_action = self.make_action_rep(action) if self._own_action_rep else codec.represent(checked)
        obs, raw_reward, raw_terminated, raw_truncated, info = self.check_step_result(
            self.inner_step(codec.to_env(checked))
        )
        num_envs = self.batched_envs
        if num_envs == 1:
            reward = np.empty(1, dtype=np.float32)
            terminated = np.empty(1, dtype=np.bool_)
            truncated = np.empty(1, dtype=np.bool_)
            reward[0] = single_value("reward", raw_reward, np.float32)
            terminated[0] = single_value("terminated", raw_terminated, np.bool_)
            truncated[0] = single_value("truncated", raw_truncated, np.bool_)
            finite = math.isfinite(reward.item())
            self._time_idx = time_idx = self._time_idx + 1
        else:
            reward = _row_values("reward", raw_reward, np.float32, num_envs)
            terminated = _row_values("terminated", raw_terminated, np.bool_, num_envs)
            truncated = _row_values("truncated", raw_truncated, np.bool_, num_envs)
            finite = bool(np.isfinite(reward).all())
            time_idx = self._time_idx + 1
            if RESET_ROWS in info:
                time_idx[info[RESET_ROWS]] = 0
            self._time_idx = np.where(terminated | truncated, 0, time_idx)
        if not finite:
            self.raise_nonfinite(raw_reward, time_idx)
        timestep = Timestep(self._map_obs(obs), prev_action, reward, time_idx, terminated, num_envs)
        return timestep, reward, terminated, truncated, info

    def raise_nonfinite(self, reward: Any, time_idx: Array) -> NoReturn:
        """Raises ValueError for a reward that the environment returned at `time_idx` (E,)."""
        raise ValueError(
            f"environment {self.env_name!r} returned the reward {reward} in step {time_idx.tolist()} of "
            "its episode; rewards must be finite in float32, as policies see them and learn from them"
        )

    def check_step_result(self, result: Any) -> tuple[Any, ...]:
        """The five results of the environment's `step`; raises TypeError for anything else."""
        return self._check_result("step", result, "(observation, reward, terminated, truncated, info)")

    def _check_result(self, method: str, result: Any, form: str) -> tuple[Any, ...]:
        if isinstance(result, tuple) and len(result) == form.count(",") + 1:
            return result
        shown = f"{len(result)} results" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise TypeError(
            f"{method}() of environment {self.env_name!r} returned {shown}, and gymnasium's {method}() returns "
            f"{form}: an environment of the older gym interface can be converted with the shimmy package"
        )

    def observation_writer(self, targets: dict[str, Array]) -> Callable[[Any], None]:
        """A function that writes an observation of the wrapped environment into arrays (E, *shape)."""
        return self._map_obs.into(targets)

    def final_observation(self, info: dict[str, Any], rows: Sequence[int] | Array) -> dict[str, Array] | None:
        """The final observations of episodes that ended in a batched environment, which resets itself.

        Reads gymnasium's `final_obs` (from 1.0 on) or `final_observation` (before): one observation per row in an
        array of objects or a list, or one batched observation.

        Args:
            info: info dict of the step.
            rows: the K rows that finished.

        Returns:
            Arrays (K, *shape) by key, where they differ from the observation that `step` returned: an environment
            that resets a row in the next step returns the final observation itself, and the keys that a subclass
            adds are not reported. None if the environment should report final observations and does not.
        """
        if RESET_ROWS in info:
            return {}
        reported = info.get("final_obs", info.get("final_observation"))
        if reported is None:
            return None
        if isinstance(reported, list) or (isinstance(reported, np.ndarray) and reported.dtype == object):
            if any(reported[row] is None for row in rows):
                return None
            mapped = [self._map_one_obs(reported[row], skip_missing=True) for row in rows]
            return {key: np.concatenate([one[key] for one in mapped]) for key in mapped[0]} if mapped else {}
        index = np.asarray(rows, dtype=np.int64)
        return {key: array[index] for key, array in self._map_obs(reported, skip_missing=True).items()}


def single_value(name: str, value: Any, dtype: Any) -> Any:
    """Converts a result of one environment, a scalar or one-element array, to `dtype`."""
    return _row_values(name, value, dtype, 1)[0]


def _row_values(name: str, values: Any, dtype: Any, num_envs: int) -> npt.NDArray[Any]:
    try:
        array: npt.NDArray[Any] = np.array(values, dtype=None if dtype is np.bool_ else dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the environment returned {values!r} as {name}: {error}") from error
    if dtype is np.bool_ and array.dtype != np.bool_:
        # Strings and other objects would count as true.
        if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
            raise ValueError(f"the environment returned {values!r} as {name}, must be True or False")
        array = array.astype(np.bool_)
    if array.size != num_envs:
        raise ValueError(
            f"the environment returned {name} of shape {array.shape}; it needs one value for each of "
            f"batched_envs={num_envs}"
        )
    return array.reshape(num_envs)


def __getattr__(name: str) -> Any:
    # The recorder imports AMAGOEnv, so these two names are imported lazily.
    if name in ("SequenceWrapper", "EnvCreator"):
        from amago.envs import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
