"""Steps a few environments one after the other and writes what they return into their rows.

Every vector environment is made of these groups: one in the main process (sync, already_vectorized), or one
in each worker process (async). That is why all of them give the same numbers.
"""

import contextlib
import itertools
import warnings
from collections.abc import Sequence
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
from amago.envs.vector.members import Member, Stage
from amago.envs.vector.self_resetting import reported_metrics
from amago.envs.vector.singles import SingleEnvs, can_step_together
from amago.envs.vector.types import ExplorationState, Ready
from amago.hindsight.timestep import Array, Timestep

STAGE_ROWS = 12
"""Single environments of a stage at most; so many already make two stages, as fewer hardly keep a policy busy."""


class EnvGroup:
    """Environments that one process steps in turn; `make`, then `attach`, then use.

    Args:
        first_index: number of the first of them among all environments, for its random stream.
        in_stages: step and reset about a dozen environments, then the next ones.
    """

    def __init__(self, first_index: int, *, in_stages: bool = False) -> None:
        self.first_index = first_index
        self._in_stages = in_stages
        self.active = 0
        self._members: list[Member] = []
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

    def _make_member(self, make_env: MakeEnv, exploration: ExplorationSetup) -> Member:
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
        return Member(
            self.active,
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

    def _member_spec(self, member: Member) -> GroupSpec:
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
        for member in self._members:
            rows = slice(member.start, member.stop)
            member.obs = [(key, array[rows]) for key, array in arrays.obs.items()]
            for name in ("actions", "rewards", "terminated", "truncated", "time_idxs", "only_reset"):
                setattr(member, name, getattr(arrays, name)[rows])
        envs = [member.env for member in self._members]
        self._singles = SingleEnvs(envs, arrays) if can_step_together(envs) else None
        count = 1
        if self._in_stages and self._singles is not None and len(envs) >= STAGE_ROWS:
            count = max(2, -(-len(envs) // STAGE_ROWS))
        bounds = [len(envs) * i // count for i in range(count + 1)]
        self._stages = [
            Stage.of(self._members[start:stop], arrays) for start, stop in itertools.pairwise(bounds)
        ]

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

    def step(self, actions: Array, ready: Ready | None = None) -> StepNotes | None:
        """Steps every environment with its rows of `actions`; resets those whose episode ended.

        Args:
            actions: of all rows.
            ready: called after each stage, see `SyncVectorEnv.step_in_stages`.
        """
        metrics: list[tuple[int, dict[str, float]]] = []
        in_step: list[NameChange] = []
        after_reset: list[NameChange] = []
        if self._singles is not None:
            self._take(self._singles, actions)
        for stage in self._stages:
            if self._singles is not None:
                self._step_singles(self._singles, stage, metrics)
            else:
                self._step_members(stage, actions, metrics)
            self._note_names(stage.renaming, in_step)
            arrays = stage.arrays
            arrays.rl2s[:, 0] = arrays.rewards
            arrays.rl2s[:, 1:] = arrays.actions
            done = arrays.terminated | arrays.truncated
            if np.count_nonzero(done):
                self._note_names(self._start_episodes(stage, done), after_reset)
            if ready is not None:
                starts = done if self._singles is not None else done | arrays.only_reset
                ready(stage.rows, starts if np.count_nonzero(starts) else None)
        if metrics or in_step or after_reset:
            return StepNotes(metrics=metrics, names_in_step=in_step, names_after_reset=after_reset)
        return None

    def _note_names(self, members: Sequence[Member], changes: list[NameChange]) -> None:
        """Adds the members that have another name than before to `changes`."""
        for member in members:
            self.active = member.number
            name = member.amago_env.env_name
            if name is not member.name and name != member.name:
                member.name = name
                changes.append((member.start, member.stop, name))

    def _take(self, singles: SingleEnvs, actions: Array) -> None:
        try:
            singles.take(actions)
        except BaseException:
            self.active = singles.active
            raise

    def _step_singles(
        self, singles: SingleEnvs, stage: Stage, metrics: list[tuple[int, dict[str, float]]]
    ) -> None:
        try:
            infos = singles.step(stage.rows, stage.arrays)
        except BaseException:
            self.active = singles.active
            raise
        for row, info in infos:
            self.active = row
            if found := extract_metrics(info):
                metrics.append((row, found))

    def _step_members(
        self, stage: Stage, actions: Array, metrics: list[tuple[int, dict[str, float]]]
    ) -> None:
        for member in stage.members:
            self.active = member.number
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

    def _metrics(self, member: Member, info: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
        if member.resets_itself:
            return [
                (member.start + row, found)
                for row, found in reported_metrics(info, member.stop - member.start)
            ]
        found = extract_metrics(info)
        return [(member.start, found)] if found else []

    def _write_first(self, member: Member, timestep: Timestep) -> None:
        for key, rows in member.obs:
            rows[...] = timestep.obs[key]
        member.time_idxs[...] = 0

    def _start_episodes(self, stage: Stage, done: Array) -> list[Member]:
        """Keeps the last observations of finished rows and fills in the first ones of what comes next.

        Returns:
            The members that were reset.
        """
        started = []
        for member in stage.members:
            if member.resets_itself:
                rows = np.flatnonzero(done[member.start - stage.rows.start : member.stop - stage.rows.start])
                if rows.size:
                    self._keep_last(member.start + rows)
                    self._write_reported_final(member, rows)
                member.info = {}
            elif done[member.start - stage.rows.start]:
                self.active = member.number
                self._keep_last(member.start)
                timestep, _ = member.env.reset()
                self._write_first(member, timestep)
                started.append(member)
        return started

    def _keep_last(self, rows: int | Array) -> None:
        arrays = self._arrays
        for key, final in arrays.final_obs.items():
            final[rows] = arrays.obs[key][rows]
        arrays.final_time_idxs[rows] = arrays.time_idxs[rows]
        arrays.rl2s[rows] = 0.0
        arrays.time_idxs[rows] = 0

    def _write_reported_final(self, member: Member, rows: Array) -> None:
        final = member.amago_env.final_observation(member.info, rows)
        if final is not None:
            for key, array in final.items():
                self._arrays.final_obs[key][member.start + rows] = array
        elif member.amago_env.reset_rows is None and not member.warned:
            member.warned = True
            warnings.warn(
                f"environment {member.name!r} resets its rows itself and does not report the last observation of "
                "an episode, so the first one of the next stands in for it: put it into info['final_obs']",
                stacklevel=2,
            )

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
