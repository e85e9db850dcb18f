"""SequenceWrapper and EnvCreator: single environments that record themselves.

Adapters over `TrajectoryRecorder` for code that steps an `AMAGOEnv` without a vector environment.
E = environments behind the AMAGOEnv.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from amago.envs.amago_env import AMAGOEnv, StepResult
from amago.envs.arguments import Size, check_arguments, check_fields
from amago.envs.gymnasium_compat import ForwardingWrapper, find_attribute
from amago.envs.metrics import (
    EPISODE_LENGTH,
    ReturnHistory,
    SpecialMetricHistory,
    StepCounts,
    extract_metrics,
    extract_vector_metrics,
)
from amago.envs.recorder.recorder import SegmentLength, TrajectoryRecorder
from amago.envs.seeding import stream
from amago.envs.vector.base import PolicyInput, VectorStep
from amago.hindsight import Array, Timestep


class SequenceWrapper(ForwardingWrapper):
    """Records the trajectories, returns and reported metrics of one AMAGOEnv.

    Args:
        env: an AMAGOEnv, with or without exploration around it.
        save_trajs_to: folder of the files; None writes nothing.
        save_every: (low, high), bounds of the random length of each file; None writes whole episodes.
        save_trajs_as: "npz", "npz-compressed" or "traj".

    Attributes:
        return_history: returns of finished episodes.
        success_history: lengths of finished episodes ("Episode Length") and metrics that the environment reported.

    Raises:
        ValueError: for an unknown format, or invalid bounds.
    """

    @check_arguments
    def __init__(
        self,
        env: gym.Env[Any, Any],
        save_trajs_to: str | Path | None,
        save_every: tuple[Size, Size] | None = None,
        save_trajs_as: Literal["npz", "npz-compressed", "traj"] = "npz",
    ) -> None:
        if save_every is not None and save_every[0] > save_every[1]:
            raise ValueError(f"save_every must be (lowest, highest), got {save_every!r}")
        super().__init__(env)
        self.batched_envs: int = find_attribute(env, "batched_envs")
        self._rng = stream(None, "recorder")
        self.recorder = TrajectoryRecorder(
            self.batched_envs,
            save_to=None if save_trajs_to is None else Path(save_trajs_to),
            save_as=save_trajs_as,
            save_len=math.inf,
            max_seq_len=1,
            rng=self._rng,
            # Dozens of these may share a folder, so that two probably have the same writer_id.
            first_number=int(self._rng.integers(1 << 16)),
        )
        if save_every is not None:
            self.recorder.segment_length = SegmentLength(*save_every)
        self._timestep: Timestep | None = None
        self._names: list[str] = []
        self._counts = StepCounts({})
        self.reset_stats()

    def reset_stats(self) -> None:
        """Removes the returns, lengths and metrics of finished episodes."""
        self.return_history = ReturnHistory(self.env_name)
        self.success_history = SpecialMetricHistory(self.env_name)

    def random_traj_length(self) -> int:
        """A random length of a file, from the distribution that the recorder uses."""
        return int(self.recorder.segment_length.sample(self._rng, 1)[0])

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Timestep, dict[str, Any]]:
        """Starts an episode and writes the unfinished one; a seed also fixes the lengths of files."""
        if seed is not None:
            self._rng.bit_generator.state = stream(seed, "recorder").bit_generator.state
        timestep, info = self.env.reset(seed=seed, options=options)
        self._timestep = timestep
        self._returns = np.zeros(self.batched_envs, np.float64)
        self._names = [self.env_name] * self.batched_envs
        self.recorder.begin(_policy_input(timestep), self._names)
        return timestep, info

    def step(self, action: Any) -> StepResult:  # type: ignore[override]  # one value per environment
        """Steps and records.

        Rows of a batched environment that finished return the first timestep of their next episode.

        Raises:
            TrajectoryWriteError: if a file could not be written; the step is still recorded.
        """
        result: Any = self.env.step(action)
        timestep, reward, terminated, truncated, info = result
        if self.env_name != self._names[0]:
            self._names = [self.env_name] * self.batched_envs
        done_rows = np.flatnonzero(terminated | truncated)
        following = timestep.create_reset_version(done_rows) if done_rows.size else timestep
        metrics = self._metrics(info)
        self._keep_statistics(timestep, reward, done_rows, metrics)
        self._timestep = timestep if self.batched_envs == 1 else following
        self.recorder.add(
            VectorStep(
                inputs=_policy_input(following),
                actions=timestep.prev_action,
                rewards=reward,
                terminated=terminated,
                truncated=truncated,
                done_rows=done_rows,
                final_obs=self._final_obs(timestep, info, done_rows),
                final_time_idxs=timestep.time_idx[done_rows],
                metrics=metrics,
                env_names=self._names,
            )
        )
        returned: Timestep = self._timestep
        return returned, reward, terminated, truncated, info

    def _metrics(self, info: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
        if self.batched_envs > 1:
            return extract_vector_metrics(info, self.batched_envs)
        return [(0, extract_metrics(info))]

    def _keep_statistics(
        self,
        timestep: Timestep,
        reward: Array,
        done_rows: Array,
        metrics: Sequence[tuple[int, dict[str, float]]],
    ) -> None:
        reset_rows = done_rows[timestep.time_idx[done_rows] == 0]  # made no transition
        self._counts.add(self._names)
        self._counts.take_back([self._names[row] for row in reset_rows.tolist()])
        self._returns += reward
        lengths = np.maximum(self.step_count, timestep.time_idx)
        for row in done_rows[lengths[done_rows] > 0].tolist():
            self.return_history.add_score(self._names[row], self._returns[row])
            self.success_history.add_score(self._names[row], EPISODE_LENGTH, lengths[row])
        self._returns[done_rows] = 0.0
        for row, found in metrics:
            for name, value in found.items():
                self.success_history.add_score(self._names[row], name, value)

    def _final_obs(self, timestep: Timestep, info: dict[str, Any], done_rows: Array) -> dict[str, Array]:
        final = {key: array[done_rows] for key, array in timestep.obs.items()}
        if self.batched_envs > 1 and done_rows.size:
            final.update(find_attribute(self.env, "final_observation")(info, done_rows) or {})
        return final

    def finish_active_traj(self, idx: int, new_init_timestep: Timestep) -> None:
        """Queues the segment of row `idx` for writing; the next one begins with `new_init_timestep`."""
        self.recorder.cut([idx])
        self.recorder.replace_current(idx, _policy_input(new_init_timestep))

    def save_finished_trajs(self) -> None:
        """Waits until every finished segment is on disk; raises TrajectoryWriteError if a write fails."""
        self.recorder.flush()

    @property
    def step_count(self) -> Array:
        """(E,) int64, steps since the start of each running episode."""
        return self.current_timestep.time_idx

    @property
    def total_frames(self) -> int:
        """Transitions recorded so far."""
        return self.recorder.total_frames

    @property
    def total_frames_by_env_name(self) -> dict[str, int]:
        """Transitions recorded so far under each environment name."""
        self._counts.settle()
        return dict(self._counts.totals)

    @property
    def current_timestep(self) -> Timestep:
        """The timestep that the policy acts on next; raises RuntimeError before the first reset."""
        if self._timestep is None:
            raise RuntimeError("there is no timestep before the first reset: call reset() first")
        return self._timestep

    @property
    def env_name(self) -> str:
        """The current name of the environment."""
        name: str = find_attribute(self.env, "env_name")
        return name

    def close(self) -> None:
        """Writes unfinished segments and closes the environment, even if a write fails.

        Raises:
            TrajectoryWriteError: if a file could not be written.
        """
        try:
            self.recorder.cut()
            self.recorder.close()
        finally:
            super().close()


def _policy_input(timestep: Timestep) -> PolicyInput:
    obs, rl2s, time_idxs = timestep.as_input()
    return PolicyInput(obs=obs, rl2s=rl2s, time_idxs=time_idxs[:, 0])


@dataclass(slots=True)
class EnvCreator:
    """Makes recording environments; picklable if `make_env` is.

    Args:
        make_env: makes an AMAGOEnv.
        exploration_wrapper_type: exploration wrapper of the environment, or None.
        save_trajs_to: folder of the files; None writes nothing.
        save_every_low, save_every_high: bounds of the files' lengths; both None write whole episodes.
        save_trajs_as: "npz", "npz-compressed" or "traj".
    """

    make_env: Callable[[], AMAGOEnv]
    exploration_wrapper_type: type[Any] | None
    save_trajs_to: str | Path | None
    save_every_low: Size | None
    save_every_high: Size | None
    save_trajs_as: Literal["npz", "npz-compressed", "traj"]

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.save_every_low is None) != (self.save_every_high is None):
            raise ValueError(
                "save_every_low and save_every_high go together, "
                f"got {self.save_every_low} and {self.save_every_high}"
            )

    def __call__(self) -> SequenceWrapper:
        """A new environment."""
        env: Any = self.make_env()
        if self.exploration_wrapper_type is not None:
            env = self.exploration_wrapper_type(env)
        save_every = None
        if self.save_every_low is not None and self.save_every_high is not None:
            save_every = (self.save_every_low, self.save_every_high)
        return SequenceWrapper(env, self.save_trajs_to, save_every, self.save_trajs_as)
