"""TrajectoryRecorder: counts the frames of a vector environment and writes its episodes to files."""

import atexit
import functools
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Gt

from amago.envs.arguments import MAY_BE_INFINITE, Count, Size, check_arguments
from amago.envs.recorder.episode_buffer import EpisodeBuffer
from amago.envs.recorder.file_writer import FileWriter
from amago.envs.vector.base import PolicyInput, VectorStep
from amago.hindsight import Array, FrozenTraj, trajectory_filename

NEVER = 2**62  # transitions; sums with it do not overflow int64


@dataclass(frozen=True, slots=True)
class SegmentLength:
    """Number of transitions per file, sampled uniformly from the integers in [low, high] for each segment."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(
                f"transitions per file must satisfy 1 <= low <= high, got low={self.low}, high={self.high}"
            )

    @classmethod
    def around(cls, save_len: int | float, max_seq_len: int, stagger: bool) -> "SegmentLength":
        """Returns the length distribution for the setting `traj_save_len`.

        With `stagger`, lengths are uniform over `save_len` ± `max_seq_len`, so that training sequences do not
        always start at the same timesteps of an episode. A `save_len` equal to `max_seq_len` is not
        staggered.

        Args:
            save_len: number of transitions, an integer or infinity; floats such as 1e10 are accepted.
            max_seq_len: length of a training sequence in transitions.
            stagger: whether to randomize lengths.

        Raises:
            ValueError: if `save_len` is not an integer or is less than `max_seq_len`.
        """
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len}")
        if save_len == math.inf:
            return cls(NEVER, NEVER)
        if not math.isfinite(save_len) or save_len != int(save_len):
            raise ValueError(f"save_len (traj_save_len) must be a whole number of steps, got {save_len}")
        if save_len < max_seq_len:
            raise ValueError(
                f"save_len (traj_save_len) must be at least max_seq_len={max_seq_len}, got {save_len}"
            )
        length = min(int(save_len), NEVER)
        margin = max_seq_len if stagger and length > max_seq_len else 0
        return cls(length - margin, min(length + margin, NEVER))

    @property
    def varies(self) -> bool:
        """Whether lengths are random."""
        return self.low < self.high

    def sample(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Samples the lengths of `count` new segments; draws no random numbers if `low` equals `high`."""
        if not self.varies:
            return np.full(count, self.low, np.int64)
        # Twice as fast as rng.integers. The bias is negligible: there are far fewer lengths than floats.
        return self.low + (rng.random(count) * (self.high - self.low + 1)).astype(np.int64)


class TrajectoryRecorder:
    """Records the steps of a vector environment; every transition is written to exactly one file.

    Episodes are split into segments, one file each. A segment is written when the episode ends, when it
    reaches its sampled length, or by `cut`. The next segment of the episode starts with the last timestep of
    the previous one, including its rl2 and time index. A background thread writes the files. A failed write
    raises `TrajectoryWriteError` from `add` or `flush`; the segment is kept and retried, and the step passed
    to `add` is still recorded.

    A segment with NaN or an infinity in its observations, rewards or actions is not written, since a single such
    number makes the updates of every batch that contains it unusable. The first one issues a warning, and
    `refused_segments` counts them.

    `on_written` and `saved_files` acknowledge a file once it is on disk. A killed process loses at most
    `unsaved_frames` transitions; a process that exits in any other way first writes its unfinished segments.

    Args:
        num_envs: number of rows N of the vector environment.
        save_to: directory of the files, created if missing; None only counts frames.
        save_as: "npz", "npz-compressed" or "traj".
        save_len: length of a segment in transitions, an integer (1e10 is accepted) or infinity.
        max_seq_len: length of a training sequence in transitions, at most `save_len`.
        stagger: randomize each segment's length within save_len ± max_seq_len.
        rng: random generator of the segment lengths.
        writer_id: three hex digits in the file names that identify this writer in the directory; None draws
            them from the operating system.
        first_number: number of the writer's first file, from 0 to 2^20 - 1. If writer ids may collide, choose
            it at random; otherwise, files written in the same second may get the same name.
        on_written: called in the writer thread with the path of each complete file. An exception counts as a
            failed write, and the file is written again.

    Attributes:
        total_frames: number of transitions recorded.
        refused_segments: number of segments that were not written because a number in them is not finite.

    Raises:
        ValueError: for an unknown format, or a `save_len` that is not an integer or is less than
            `max_seq_len`.
    """

    @check_arguments
    def __init__(
        self,
        num_envs: Size,
        *,
        save_to: Path | None,
        save_as: Literal["npz", "npz-compressed", "traj"] = "npz",
        save_len: Annotated[float, Gt(0), MAY_BE_INFINITE],
        max_seq_len: Size,
        stagger: bool = True,
        rng: np.random.Generator,
        writer_id: str | None = None,
        first_number: Count = 0,
        on_written: Callable[[Path], None] | None = None,
    ) -> None:
        self.num_envs = num_envs
        self.total_frames = 0
        self.refused_segments = 0
        self.segment_length = SegmentLength.around(save_len, max_seq_len, stagger)
        self._rng = rng
        self._writer_id = (
            f"{int.from_bytes(os.urandom(2), 'big') % 4096:03x}" if writer_id is None else writer_id
        )
        self._sequence_number = first_number
        trajectory_filename("check", self._writer_id, first_number, 0.0)
        self._names: list[str] = []
        self._buffer: EpisodeBuffer | None = None
        self._limits = np.zeros(num_envs, np.int64)
        self._steps = 0
        self._due = 0  # first step in which a segment may reach its limit
        self._writer: FileWriter | None = None
        if save_to is not None:
            self._writer = FileWriter(Path(save_to), save_as, on_written)
            # Writes unfinished segments and the queue if the program exits without `close`.
            weakref.finalize(self, self._writer.stop)
            self._at_exit = functools.partial(_cut_at_exit, weakref.ref(self), os.getpid())
            atexit.register(self._at_exit)
            weakref.finalize(self, atexit.unregister, self._at_exit)

    def begin(self, inputs: PolicyInput, env_names: Sequence[str]) -> None:
        """Starts a new episode in every row, after queueing the unfinished segments of earlier episodes.

        Args:
            inputs: result of the vector environment's `reset`.
            env_names: environment name of each row.
        """
        if len(env_names) != self.num_envs or len(inputs.time_idxs) != self.num_envs:
            raise ValueError(
                f"expected num_envs={self.num_envs} rows and names, got {len(inputs.time_idxs)} rows and "
                f"{len(env_names)} names"
            )
        if self._writer is None:
            return
        self.cut()
        self._names = list(env_names)
        if self._buffer is None:
            self._buffer = EpisodeBuffer(inputs)
        else:
            self._buffer.restart_all(inputs)
        self._limits = self.segment_length.sample(self._rng, self.num_envs)
        self._due = 0

    def add(self, step: VectorStep) -> None:
        """Records one step of all rows, except `step.reset_rows`, which made no transition.

        Raises:
            RuntimeError: if `begin` was not called first.
            TrajectoryWriteError: if a write failed since the last call.
        """
        buffer = self._buffer
        reset_rows: list[int] = step.reset_rows.tolist() if step.done_rows.size else []
        if self._writer is not None:
            if buffer is None:
                raise RuntimeError(
                    "add was called before begin: call begin with the vector environment's reset first"
                )
            if reset_rows:
                self.cut(reset_rows)
            buffer.add(step)
        self._names = step.env_names
        self.total_frames += len(step.rewards) - len(reset_rows)
        if self._writer is None or buffer is None:
            return
        if step.done_rows.size:
            for row, segment in buffer.finished_segments(step):
                buffer.begin_episode(row)
                if segment.time_idxs[-1] > 0:
                    self._write(segment, row)
            self._sample_limits(step.done_rows)
        self._steps += 1
        if self._steps >= self._due:
            self._cut_rows(buffer, np.flatnonzero(buffer.lengths >= self._limits))
            self._due = self._steps + int((self._limits - buffer.lengths).min())
        self._writer.raise_failure()

    def _sample_limits(self, rows: Array) -> None:
        if self.segment_length.varies:
            self._limits[rows] = self.segment_length.sample(self._rng, len(rows))
        self._due = min(self._due, self._steps + self.segment_length.low)

    def _cut_rows(self, buffer: EpisodeBuffer, rows: Array) -> None:
        for row in rows.tolist():
            segment = buffer.segment(row)
            buffer.continue_episode(row)
            self._write(segment, row)
        if rows.size:
            self._sample_limits(rows)

    def _write(self, segment: FrozenTraj, row: int) -> None:
        assert self._writer is not None
        env_name = self._names[row]
        if (problem := _nonfinite(segment)) is not None:
            self._refuse(problem, row)
            return
        name = trajectory_filename(env_name, self._writer_id, self._sequence_number, time.time())
        self._sequence_number += 1
        self._writer.put(segment, name, env_name)

    def _refuse(self, problem: str, row: int) -> None:
        self.refused_segments += 1
        if self.refused_segments == 1:
            warnings.warn(
                f"a trajectory of environment {row} ({self._names[row]!r}) is not saved: {problem}. Correct what "
                "the environment returns; further trajectories like it are only counted.",
                stacklevel=2,
            )

    def cut(self, rows: Sequence[int] | None = None) -> None:
        """Queues the unfinished segments of `rows` (default: all rows) for writing; the episodes continue."""
        if self._buffer is not None:
            unfinished = self._buffer.lengths > 0
            if rows is not None:
                unfinished &= np.isin(np.arange(self.num_envs), rows)
            self._cut_rows(self._buffer, np.flatnonzero(unfinished))

    def replace_current(self, row: int, inputs: PolicyInput) -> None:
        """Replaces the first timestep of a row's segment, which must not have any transitions yet."""
        if self._buffer is not None:
            self._buffer.replace_current(row, inputs)

    def flush(self) -> None:
        """Waits until the write queue is on disk; raises TrajectoryWriteError if a write fails."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes the queue and stops the writer thread. Drops unfinished segments: call `cut` first."""
        if self._writer is not None:
            atexit.unregister(self._at_exit)
            try:
                self._writer.flush()
            finally:
                self._writer.stop()

    @property
    def saved_files(self) -> int:
        """Number of files written; `on_written` receives their paths."""
        return 0 if self._writer is None else self._writer.files_written

    @property
    def unsaved_frames(self) -> int:
        """Number of recorded transitions not yet in a complete file, which a kill would lose."""
        if self._writer is None or self._buffer is None:
            return 0
        return int(self._buffer.lengths.sum()) + self._writer.pending_transitions

    def state_dict(self) -> dict[str, Any]:
        """JSON-serializable state: counters, number of the next file, and state of the random generator.

        Unfinished segments are not included: call `cut` and reset before a checkpoint.
        """
        return {
            "total_frames": self.total_frames,
            "writer_id": self._writer_id,
            "sequence_number": self._sequence_number,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`; raises KeyError if an entry is missing."""
        self.total_frames = int(state["total_frames"])
        self._writer_id = str(state["writer_id"])
        self._sequence_number = int(state["sequence_number"])
        self._rng.bit_generator.state = state["rng"]


def _nonfinite(segment: FrozenTraj) -> str | None:
    """Describes the first number of a segment that is NaN or infinite; None if all are finite."""
    arrays = {f"observation {key!r}": array for key, array in segment.obs.items() if array.dtype.kind == "f"}
    arrays |= {"the reward": segment.rl2s[:, :1], "the action": segment.rl2s[:, 1:]}
    for name, array in arrays.items():
        finite = np.isfinite(array)
        if not finite.all():
            step = int(np.argmin(finite.reshape(len(array), -1).all(axis=1)))
            value = array[step][~finite[step]].flat[0]
            return f"{name} is {value} in step {int(segment.time_idxs[step, 0])} of the episode"
    return None


def _cut_at_exit(recorder: "weakref.ref[TrajectoryRecorder]", owner: int) -> None:
    """Queues the unfinished segments of a recorder that was not closed."""
    alive = recorder()
    # A forked process has copies of the segments; only the owner writes them.
    if alive is not None and os.getpid() == owner:
        alive.cut()


class SplitRecorder:
    """The recorders of the two halves of a `SplitVectorEnv`. Their `writer_id`s must differ.

    Add steps to the recorders in `halves`. All other methods and properties combine both recorders.
    """

    def __init__(self, first: TrajectoryRecorder, second: TrajectoryRecorder) -> None:
        self.halves = (first, second)

    def cut(self) -> None:
        """Queues the unfinished segments of both recorders for writing."""
        for half in self.halves:
            half.cut()

    def flush(self) -> None:
        """Waits until both write queues are on disk."""
        for half in self.halves:
            half.flush()

    def close(self) -> None:
        """Flushes both write queues and stops both writer threads."""
        try:
            self.halves[0].close()
        finally:
            self.halves[1].close()

    @property
    def saved_files(self) -> int:
        """Number of files written."""
        return sum(half.saved_files for half in self.halves)

    @property
    def refused_segments(self) -> int:
        """Number of segments that were not written because a number in them is not finite."""
        return sum(half.refused_segments for half in self.halves)

    def state_dict(self) -> dict[str, Any]:
        """States of both recorders."""
        return {"halves": [half.state_dict() for half in self.halves]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        for half, half_state in zip(self.halves, state["halves"], strict=True):
            half.load_state_dict(half_state)
