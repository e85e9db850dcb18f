"""Steps a few environments one after the other and writes what they return into their rows.

Every vector environment is made of these groups: one in the main process (sync, already_vectorized), or one
in each worker process (async). That is why all of them give the same numbers.
"""

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.amago_env import AMAGOEnv
from amago.envs.metrics import extract_metrics
from amago.envs.seeding import stream
from amago.envs.vector.buffers import StepArrays
from amago.envs.vector.group_spec import (
    ExplorationSetup,
    GroupSpec,
    MakeEnv,
    NameChange,
    StepNotes,
    common_spec,
)
from amago.envs.vector.self_resetting import reported_metrics
from amago.envs.vector.singles import SingleEnvs, can_step_together
from amago.envs.vector.types import ExplorationState
from amago.hindsight.timestep import Array, Timestep


@dataclass(slots=True, eq=False)
class _Member:
    """One environment and its rows of the arrays, sliced once because slicing costs as much as a copy."""

    amago_env: AMAGOEnv
    env: Any  # the exploration wrapper around it, if there is one
    start: int
    stop: int
    name: str
    resets_itself: bool
    name_is_fixed: bool
    # Of the last step, kept for those that reset themselves.
    info: dict[str, Any] = field(default_factory=dict)
    obs: list[tuple[str, Array]] = field(default_factory=list)
    actions: Array = field(default_factory=lambda: np.empty(0))
    rewards: Array = field(default_factory=lambda: np.empty(0))
    terminated: Array = field(default_factory=lambda: np.empty(0))
    truncated: Array = field(default_factory=lambda: np.empty(0))
    time_idxs: Array = field(default_factory=lambda: np.empty(0))
    only_reset: Array = field(default_factory=lambda: np.empty(0))
    warned: bool = False  # that last observations are missing


class EnvGroup:
    """Environments that one process steps in turn; `make`, then `attach`, then use.

    Args:
        first_index: number of the first of them among all environments, for its random stream.
    """

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.active = 0
        self._members: list[_Member] = []
        self._singles: SingleEnvs | None = None

    def make(self, make_envs: Sequence[MakeEnv], exploration: ExplorationSetup) -> None:
        """Makes the environments, one per callable; if one fails, those made before it are closed.

        Raises:
            TypeError: if a callable returns no AMAGOEnv.
        """
        try:
            for make_env in make_envs:
                self.active = len(self._members)
                self._members.append(self._make_member(make_env, exploration))
        except BaseException:
            self.close()
            raise

    def _make_member(self, make_env: MakeEnv, exploration: ExplorationSetup) -> _Member:
        index = self.first_index + self.active
        amago_env = make_env()
        if not isinstance(amago_env, AMAGOEnv):
            raise TypeError(
                f"the callable of environment {index} returned {type(amago_env).__name__}; "
                "it must return the environment wrapped in AMAGOEnv(env, env_name=...)"
            )
        env: Any = amago_env
        if exploration.wrapper_type is not None:
            env = exploration.wrapper_type(amago_env)
            env.seed_exploration(stream(exploration.seed, "exploration", exploration.rank, index))
        start = self._members[-1].stop if self._members else 0
        rows = amago_env.batched_envs
        return _Member(
            amago_env,
            env,
            start,
            start + rows,
            amago_env.env_name,
            resets_itself=rows > 1,
            name_is_fixed=amago_env.name_is_fixed,
        )

    @property
    def spec(self) -> GroupSpec:
        """What the environments look like together; raises ValueError if their spaces differ."""
        return common_spec([self._member_spec(member) for member in self._members], self.first_index)

    def _member_spec(self, member: _Member) -> GroupSpec:
        observation_space = member.amago_env.observation_space
        assert isinstance(observation_space, gym.spaces.Dict)
        return GroupSpec(
            observation_space=observation_space,
            rl2_space=member.amago_env.rl2_space,
            action_space=member.amago_env.action_space,
            rows_per_env=[member.stop - member.start],
            names=[member.name],
        )

    @property
    def active_name(self) -> str:
        """Number and name of the environment that was used last, for error messages."""
        index = self.first_index + self.active
        return (
            f"{index} ({self._members[self.active].name!r})"
            if self.active < len(self._members)
            else f"{index}"
        )

    def active_rows(self, actions: Array) -> Array:
        """The rows of `actions` that the environment used last received."""
        member = self._members[self.active]
        return actions[member.start : member.stop]

    def attach(self, arrays: StepArrays) -> None:
        """Sets the rows that the environments write into."""
        self._arrays = arrays
        self._renaming = [member for member in self._members if not member.name_is_fixed]
        for member in self._members:
            rows = slice(member.start, member.stop)
            member.obs = [(key, array[rows]) for key, array in arrays.obs.items()]
            for name in ("actions", "rewards", "terminated", "truncated", "time_idxs", "only_reset"):
                setattr(member, name, getattr(arrays, name)[rows])
        envs = [member.env for member in self._members]
        self._singles = SingleEnvs(envs, arrays) if can_step_together(envs) else None

    def reset(self, seeds: Sequence[int | None]) -> list[str]:
        """Starts a new episode everywhere; `seeds` has one per environment. Returns the name of each."""
        for i, (member, seed) in enumerate(zip(self._members, seeds, strict=True)):
            self.active = i
            timestep, _ = member.env.reset(seed=seed)
            self._write_first(member, timestep)
            member.name = member.amago_env.env_name
        for name in ("rl2s", "actions", "rewards", "terminated", "truncated", "only_reset"):
            getattr(self._arrays, name)[:] = 0
        return [member.name for member in self._members]

    def step(self, actions: Array) -> StepNotes | None:
        """Steps every environment with its rows of `actions`; resets those whose episode ended."""
        metrics = self._step_singles(actions) if self._singles is not None else self._step_members(actions)
        renamed: list[NameChange] = []
        for member in self._renaming:
            name = member.amago_env.env_name
            if name is not member.name and name != member.name:
                member.name = name
                renamed.append((member.start, member.stop, name))
        arrays = self._arrays
        arrays.rl2s[:, 0] = arrays.rewards
        arrays.rl2s[:, 1:] = arrays.actions
        done = arrays.terminated | arrays.truncated
        renamed_by_reset = self._start_episodes(done) if np.count_nonzero(done) else []
        if metrics or renamed or renamed_by_reset:
            return StepNotes(metrics=metrics, names_in_step=renamed, names_after_reset=renamed_by_reset)
        return None

    def _step_singles(self, actions: Array) -> list[tuple[int, dict[str, float]]]:
        singles = self._singles
        assert singles is not None
        try:
            infos = singles.step(actions)
        except BaseException:
            self.active = singles.active
            raise
        metrics = []
        for row, info in infos:
            self.active = row
            if found := extract_metrics(info):
                metrics.append((row, found))
        return metrics

    def _step_members(self, actions: Array) -> list[tuple[int, dict[str, float]]]:
        metrics: list[tuple[int, dict[str, float]]] = []
        for i, member in enumerate(self._members):
            self.active = i
            timestep, reward, terminated, truncated, info = member.env.step(
                actions[member.start : member.stop]
            )
            for key, rows in member.obs:
                rows[...] = timestep.obs[key]
            member.actions[...] = timestep.prev_action
            member.time_idxs[...] = timestep.time_idx
            member.rewards[...] = reward
            member.terminated[...] = terminated
            member.truncated[...] = truncated
            if (reset_rows := member.amago_env.reset_rows) is not None:
                member.only_reset[...] = reset_rows
            if info:
                metrics += self._metrics(member, info)
                if member.resets_itself:
                    member.info = info
        return metrics

    def _metrics(self, member: _Member, info: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
        if member.resets_itself:
            return [
                (member.start + row, found)
                for row, found in reported_metrics(info, member.stop - member.start)
            ]
        found = extract_metrics(info)
        return [(member.start, found)] if found else []

    def _write_first(self, member: _Member, timestep: Timestep) -> None:
        for key, rows in member.obs:
            rows[...] = timestep.obs[key]
        member.time_idxs[...] = 0

    def _start_episodes(self, done: Array) -> list[NameChange]:
        """Keeps the last observations of finished rows and fills in the first ones of what comes next."""
        arrays = self._arrays
        for key, final in arrays.final_obs.items():
            final[done] = arrays.obs[key][done]
        arrays.final_time_idxs[done] = arrays.time_idxs[done]
        arrays.rl2s[done] = 0.0
        arrays.time_idxs[done] = 0
        renamed: list[NameChange] = []
        for i, member in enumerate(self._members):
            if member.resets_itself:
                self._write_reported_final(member, done)
                continue
            if not done[member.start]:
                continue
            self.active = i
            timestep, _ = member.env.reset()
            self._write_first(member, timestep)
            name = member.amago_env.env_name
            if name != member.name:
                member.name = name
                renamed.append((member.start, member.stop, name))
        return renamed

    def _write_reported_final(self, member: _Member, done: Array) -> None:
        rows = np.flatnonzero(done[member.start : member.stop])
        final = member.amago_env.final_observation(member.info, rows) if rows.size else None
        if final is not None:
            for key, array in final.items():
                self._arrays.final_obs[key][member.start + rows] = array
        elif rows.size and member.amago_env.reset_rows is None and not member.warned:
            member.warned = True
            warnings.warn(
                f"environment {member.name!r} resets its rows itself and does not report the last observation of "
                "an episode, so the first one of the next stands in for it: put it into info['final_obs']",
                stacklevel=2,
            )
        member.info = {}

    def render(self) -> None:
        """Renders the first environment of the group."""
        self._members[0].env.render()

    def exploration_state(self) -> list[ExplorationState]:
        """One state per environment; [] without exploration."""
        return [m.env.exploration_state() for m in self._members if m.env is not m.amago_env]

    def load_exploration_state(self, states: Sequence[ExplorationState]) -> None:
        """Restores what `exploration_state` gave."""
        for member, state in zip(self._members, states, strict=True):
            member.env.load_exploration_state(state)

    def close(self) -> None:
        """Closes the environments, the last one first."""
        with contextlib.ExitStack() as stack:
            for member in self._members:
                stack.callback(member.env.close)
            self._members = []
