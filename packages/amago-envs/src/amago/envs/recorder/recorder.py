"""TrajectoryRecorder: counts the frames of a vector environment and writes its episodes to files."""

import atexit
import functools
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from amago.envs.metrics import StepCounts
from amago.envs.recorder.episode_buffer import EpisodeBuffer
from amago.envs.recorder.file_writer import FileWriter
from amago.envs.vector.base import PolicyInput, VectorStep
from amago.hindsight import SAVE_FORMATS, Array, FrozenTraj, trajectory_filename

NEVER = 2**62  # transitions; sums with it stay within int64


@dataclass(frozen=True, slots=True)
class SegmentLength:
    """The transitions per file, uniform over the integers in [low, high] for every segment of an episode."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(
                f"a trajectory file has at least 1 transition and low <= high, got [{self.low}, {self.high}]"
            )

    @classmethod
    def around(cls, save_len: int | float, max_seq_len: int, stagger: bool) -> "SegmentLength":
        """The lengths for `traj_save_len`.

        With `stagger` they are uniform over `save_len` ± `max_seq_len`, so that training windows do not always
        begin at the same timesteps of an episode; a `save_len` equal to `max_seq_len` is never varied.

        Args:
            save_len: transitions, a whole number or infinity; floats such as 1e10 are accepted.
            max_seq_len: transitions in a training sequence.
            stagger: whether lengths vary.

        Raises:
            ValueError: if `save_len` is not a whole number or less than `max_seq_len`.
        """
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {max_seq_len}")
        if save_len == math.inf:
            return cls(NEVER, NEVER)
        if not math.isfinite(save_len) or save_len != int(save_len):
            raise ValueError(f"save_len (traj_save_len) must be a whole number of steps, got {save_len}")
        if save_len < max_seq_len:
            raise ValueError(
                f"save_len (traj_save_len) must be at least max_seq_len, {max_seq_len}, or no file would fill a "
                f"training sequence; got {save_len}"
            )
        length = min(int(save_len), NEVER)
        margin = max_seq_len if stagger and length > max_seq_len else 0
        return cls(length - margin, min(length + margin, NEVER))

    @property
    def varies(self) -> bool:
        """Whether lengths are random."""
        return self.low < self.high

    def sample(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """The lengths of `count` new segments; draws no random numbers if `low` equals `high`."""
        if not self.varies:
            return np.full(count, self.low, np.int64)
        # Twice as fast as rng.integers, at every end of an episode; there are far fewer lengths than floats.
        return self.low + (rng.random(count) * (self.high - self.low + 1)).astype(np.int64)


class TrajectoryRecorder:
    """Receives every step of a vector environment; every transition ends up in exactly one file.

    A segment of an episode is written when the episode ends, when it reaches its length, or by `cut`; the next
    segment of the same episode begins with the last timestep of the one before, its rl2 and time index kept. Files
    are written by a thread. A failed write raises `TrajectoryWriteError` from `add` or `flush`; the segment is
    kept and written again later, and the step that was being added is recorded all the same.

    A file is acknowledged by `on_written` and `saved_files` once it is on disk. A killed process loses at most
    `unsaved_frames`; one that ends in any other way writes its unfinished segments first.

    Args:
        num_envs: N, rows of the vector environment.
        save_to: folder of the files, made if it does not exist; None only counts frames.
        save_as: "npz", "npz-compressed" or "traj".
        save_len: transitions after which a segment is written; a whole number (1e10 will do) or infinity.
        max_seq_len: transitions of a training sequence; `save_len` may not be less.
        stagger: vary each segment's length within save_len ± max_seq_len.
        rng: for those lengths.
        writer_id: three hex digits that distinguish writers of one folder in file names; None draws them from the
            operating system.
        first_number: of the writer's files, from 0 to 2^20 - 1. Writers whose ids may collide need random first
            numbers too, or files of the same second could get the same name.
        on_written: called in the writing thread with the path of each complete file. If it raises, that counts as
            a failed write, and the file is written again.

    Raises:
        ValueError: for an unknown format or a `save_len` that is not a whole number or too small.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        save_to: Path | None,
        save_as: str = "npz",
        save_len: int | float,
        max_seq_len: int,
        stagger: bool = True,
        rng: np.random.Generator,
        writer_id: str | None = None,
        first_number: int = 0,
        on_written: Callable[[Path], None] | None = None,
    ) -> None:
        if save_as not in SAVE_FORMATS:
            raise ValueError(f"save_as must be one of {', '.join(SAVE_FORMATS)}, got {save_as!r}")
        self.num_envs = num_envs
        self.total_frames = 0
        self.segment_length = SegmentLength.around(save_len, max_seq_len, stagger)
        self._rng = rng
        self._writer_id = (
            f"{int.from_bytes(os.urandom(2), 'big') % 4096:03x}" if writer_id is None else writer_id
        )
        self._sequence_number = first_number
        trajectory_filename("check", self._writer_id, first_number, 0.0)
        self._counts = StepCounts({})
        self._names: list[str] = []
        self._buffer: EpisodeBuffer | None = None
        self._limits = np.zeros(num_envs, np.int64)
        self._steps = 0
        self._due = 0  # no segment reaches its limit before that step
        self._writer: FileWriter | None = None
        if save_to is not None:
            self._writer = FileWriter(Path(save_to), save_as, on_written)
            # A program that ends without closing still writes unfinished segments and the queue.
            weakref.finalize(self, self._writer.stop)
            self._at_exit = functools.partial(_cut_at_exit, weakref.ref(self), os.getpid())
            atexit.register(self._at_exit)
            weakref.finalize(self, atexit.unregister, self._at_exit)

    def begin(self, inputs: PolicyInput, env_names: Sequence[str]) -> None:
        """Begins new episodes in every row; segments of earlier ones are written first.

        Args:
            inputs: the result of the vector environment's reset.
            env_names: N names.
        """
        if len(env_names) != self.num_envs or len(inputs.time_idxs) != self.num_envs:
            raise ValueError(
                f"the recorder was made for num_envs={self.num_envs} rows, got {len(inputs.time_idxs)} rows and "
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
        """Records one step of all rows.

        Raises:
            RuntimeError: if `begin` was not called before.
            TrajectoryWriteError: if a file could not be written since the last call.
        """
        buffer = self._buffer
        if self._writer is not None:
            if buffer is None:
                raise RuntimeError(
                    "add was called before begin: pass the vector environment's reset to begin first"
                )
            buffer.add(step)
        if self._counts.add(step.env_names):
            self._names = step.env_names
        self.total_frames += len(step.rewards)
        if self._writer is None or buffer is None:
            return
        if step.done_rows.size:
            for row, segment in buffer.finished_segments(step):
                buffer.begin_episode(row)
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
        name = trajectory_filename(env_name, self._writer_id, self._sequence_number, time.time())
        self._sequence_number += 1
        self._writer.put(segment, name, env_name)

    def cut(self, rows: Sequence[int] | None = None) -> None:
        """Queues the unfinished segments of `rows`, or of all, for writing; their episodes continue."""
        if self._buffer is not None:
            unfinished = self._buffer.lengths > 0
            if rows is not None:
                unfinished &= np.isin(np.arange(self.num_envs), rows)
            self._cut_rows(self._buffer, np.flatnonzero(unfinished))

    def replace_current(self, row: int, inputs: PolicyInput) -> None:
        """Replaces the first timestep of a segment that has no transition yet."""
        if self._buffer is not None:
            self._buffer.replace_current(row, inputs)

    def flush(self) -> None:
        """Waits until everything queued is on disk; raises TrajectoryWriteError if a write fails."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and ends the writing thread. Unfinished segments are dropped: call `cut` before."""
        if self._writer is not None:
            atexit.unregister(self._at_exit)
            try:
                self._writer.flush()
            finally:
                self._writer.stop()

    @property
    def saved_files(self) -> int:
        """The number of files that this recorder has written; `on_written` receives their paths."""
        return 0 if self._writer is None else self._writer.files_written

    @property
    def unsaved_frames(self) -> int:
        """Recorded transitions that are not in a complete file yet: the loss if the process were killed now."""
        if self._writer is None or self._buffer is None:
            return 0
        return int(self._buffer.lengths.sum()) + self._writer.pending_transitions

    @property
    def frames_by_env_name(self) -> dict[str, int]:
        """Transitions recorded under each environment name."""
        self._counts.settle()
        return dict(self._counts.totals)

    def state_dict(self) -> dict[str, Any]:
        """Counters, the number of the next file and the random state, all JSON-able.

        Unfinished segments are not included: `cut` and reset before a checkpoint.
        """
        return {
            "total_frames": self.total_frames,
            "frames_by_env_name": self.frames_by_env_name,
            "writer_id": self._writer_id,
            "sequence_number": self._sequence_number,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`; raises KeyError if an entry is missing."""
        self.total_frames = int(state["total_frames"])
        self._counts = StepCounts(
            {str(name): int(count) for name, count in state["frames_by_env_name"].items()}
        )
        self._writer_id = str(state["writer_id"])
        self._sequence_number = int(state["sequence_number"])
        self._rng.bit_generator.state = state["rng"]


def _cut_at_exit(recorder: "weakref.ref[TrajectoryRecorder]", owner: int) -> None:
    """Queues the unfinished segments of a recorder that nobody closed."""
    alive = recorder()
    # A process forked from the owner holds a copy of the segments, which the owner writes.
    if alive is not None and os.getpid() == owner:
        alive.cut()


class SplitRecorder:
    """The recorders of the two halves of a `SplitVectorEnv`, whose files must differ in their `writer_id`.

    Steps are added to `halves`; everything else acts on both and has the meaning that it has in
    `TrajectoryRecorder`.
    """

    def __init__(self, first: TrajectoryRecorder, second: TrajectoryRecorder) -> None:
        self.halves = (first, second)

    def cut(self) -> None:
        """Queues all unfinished segments for writing."""
        for half in self.halves:
            half.cut()

    def flush(self) -> None:
        """Waits until everything queued is on disk."""
        for half in self.halves:
            half.flush()

    def close(self) -> None:
        """Flushes and ends both writing threads."""
        try:
            self.halves[0].close()
        finally:
            self.halves[1].close()

    @property
    def total_frames(self) -> int:
        """Transitions recorded so far."""
        return sum(half.total_frames for half in self.halves)

    @property
    def frames_by_env_name(self) -> dict[str, int]:
        """Transitions recorded under each environment name."""
        first, second = (half.frames_by_env_name for half in self.halves)
        return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}

    @property
    def saved_files(self) -> int:
        """The number of files written."""
        return sum(half.saved_files for half in self.halves)

    @property
    def unsaved_frames(self) -> int:
        """Recorded transitions that are not in a complete file yet."""
        return sum(half.unsaved_frames for half in self.halves)

    def state_dict(self) -> dict[str, Any]:
        """The states of both."""
        return {"halves": [half.state_dict() for half in self.halves]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        for half, half_state in zip(self.halves, state["halves"], strict=True):
            half.load_state_dict(half_state)
