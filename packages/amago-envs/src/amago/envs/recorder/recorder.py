"""TrajectoryRecorder: counts the frames of a vector environment and writes its episodes to files."""

import atexit
import functools
import os
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amago.envs.metrics import StepCounts
from amago.envs.recorder.lengths import PieceLength
from amago.envs.recorder.pieces import UnfinishedPieces
from amago.envs.recorder.writer import TrajectoryWriter
from amago.envs.vector.types import PolicyInput, VectorStep
from amago.hindsight import SAVE_FORMATS
from amago.hindsight.filenames import trajectory_filename
from amago.hindsight.timestep import Array
from amago.hindsight.trajectory import FrozenTraj


class TrajectoryRecorder:
    """Receives every step of a vector environment; every transition ends up in exactly one file.

    A piece of an episode is written when the episode ends, at its drawn length, or by `cut`; the next piece of
    the same episode begins with the last timestep of the one before, its rl2 and time index kept. Files are
    written by `add` while they are small and the disk is quick, else by a thread. A failed write raises
    `TrajectoryWriteError` from `add` or `flush`; the piece is kept and retried, and the step that was being added
    is recorded all the same.

    A file is acknowledged by `on_written` and `saved_files`; from then on it stays, whatever happens to this
    process. What a process that is killed loses is at most `unsaved_frames`. One that ends in any other way
    writes its unfinished pieces first.

    Args:
        num_envs: N, rows of the vector environment.
        save_to: folder of the files, made if it does not exist; None counts frames only and keeps nothing.
        save_as: "npz", "npz-compressed" or "traj".
        save_len: transitions after which a piece is written; a whole number (1e10 will do) or infinity.
        max_seq_len: transitions of a training sequence; `save_len` may not be less.
        stagger: draw each piece's length from save_len ± max_seq_len.
        rng: for those draws.
        writer_id: three hex digits that tell writers of one folder apart in file names; None draws them from
            the operating system.
        first_number: of the writer's files, from 0 to 2^20 - 1. Writers that may have drawn the same id draw this
            too, for else they would give files of one second the same names.
        on_written: called with the path of each file when it is whole, by whichever thread wrote it. If it
            raises, that counts as a failed write, and the file is written again.

    Raises:
        ValueError: for an unknown format or a `save_len` that is no whole number or too small.
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
        self.piece_length = PieceLength.around(save_len, max_seq_len, stagger)
        self._rng = rng
        self._writer_id = (
            f"{int.from_bytes(os.urandom(2), 'big') % 4096:03x}" if writer_id is None else writer_id
        )
        self._sequence_number = first_number
        trajectory_filename("check", self._writer_id, first_number, 0.0)
        self._frames: dict[str, int] = {}
        self._counts: dict[tuple[int, int] | None, StepCounts] = {}  # by part, None for steps of all rows
        self._counted_whole = True
        self._names: list[str] = []
        self._pieces: UnfinishedPieces | None = None
        self._limits = np.zeros(num_envs, np.int64)
        self._steps = 0
        self._due = 0  # no piece reaches its limit before that step
        self._writer: TrajectoryWriter | None = None
        if save_to is not None:
            self._writer = TrajectoryWriter(Path(save_to), save_as, on_written)
            # A program that ends without closing still writes what was handed over, and unfinished pieces before.
            weakref.finalize(self, self._writer.stop)
            self._at_exit = functools.partial(_cut_at_exit, weakref.ref(self), os.getpid())
            atexit.register(self._at_exit)
            weakref.finalize(self, atexit.unregister, self._at_exit)

    def begin(self, inputs: PolicyInput, env_names: Sequence[str]) -> None:
        """Begins new episodes in every row; pieces of earlier ones are written first.

        Args:
            inputs: what the reset of the vector environment returned.
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
        if self._pieces is None:
            self._pieces = UnfinishedPieces(inputs)
        else:
            self._pieces.restart_all(inputs)
        self._limits = self.piece_length.draw(self._rng, self.num_envs)
        self._due = 0

    def add(self, step: VectorStep, rows: slice | None = None) -> None:
        """Records one step of all rows, or of a part of them.

        Args:
            step: what the vector environment returned.
            rows: those that `step` is of, with start and stop, where the environments are stepped in two parts;
                each part in turn, so that none is ever more than a step ahead.

        Raises:
            RuntimeError: if `begin` was not called before, or another part's step is due.
            TrajectoryWriteError: if a file could not be written since the last call.
        """
        pieces = self._pieces
        if self._writer is not None:
            if pieces is None:
                raise RuntimeError(
                    "add was called before begin: pass the vector environment's reset to begin first"
                )
            pieces.add(step, rows)
        self._count(step, rows)
        if self._writer is None or pieces is None:
            return
        first_row = 0 if rows is None else rows.start
        if step.reset_rows.size:
            # Their episode begins here: what was added for them is no transition.
            for row in (step.reset_rows + first_row).tolist():
                pieces.begin_episode(row)
        if step.done_rows.size:
            done_rows = step.done_rows + first_row
            for row, piece in pieces.finished_pieces(step, done_rows):
                pieces.begin_episode(row)
                self._hand_over(piece, row)
            self._draw_limits(done_rows)
        if pieces.in_step:
            self._steps += 1
            if self._steps >= self._due:
                self._cut_long_pieces(pieces)
        self._writer.raise_failure()

    def _count(self, step: VectorStep, rows: slice | None) -> None:
        """Counts a step's frames and notes the names of its rows."""
        part = None if rows is None else (rows.start, rows.stop)
        if (part is None) != self._counted_whole:
            # Parts do not see the names that change in steps of all rows, nor the other way round.
            self._settle_counts()
            self._counts.clear()
            self._counted_whole = part is None
        counts = self._counts.get(part)
        if counts is None:
            counts = self._counts[part] = StepCounts(self._frames)
        if counts.add(step.env_names):
            if rows is None:
                self._names = step.env_names
            else:
                self._names = [*self._names[: rows.start], *step.env_names, *self._names[rows.stop :]]
        self.total_frames += len(step.rewards) - len(step.reset_rows)
        for row in step.reset_rows.tolist():
            counts.take_back(step.env_names[row])

    def _cut_long_pieces(self, pieces: UnfinishedPieces) -> None:
        rows = np.flatnonzero(pieces.lengths >= self._limits)
        if rows.size:
            self._cut_rows(pieces, rows)
        self._due = self._steps + int((self._limits - pieces.lengths).min())

    def _draw_limits(self, rows: Array) -> None:
        if self.piece_length.varies:
            self._limits[rows] = self.piece_length.draw(self._rng, len(rows))
        self._due = min(self._due, self._steps + self.piece_length.low)

    def _cut_rows(self, pieces: UnfinishedPieces, rows: Array) -> None:
        for row in rows.tolist():
            piece = pieces.piece(row)
            # First, so that an interrupt while files are written leaves nothing to be handed over again.
            pieces.continue_episode(row)
            self._hand_over(piece, row)
        self._draw_limits(rows)

    def _hand_over(self, piece: FrozenTraj, row: int) -> None:
        assert self._writer is not None
        env_name = self._names[row]
        name = trajectory_filename(env_name, self._writer_id, self._sequence_number, time.time())
        self._sequence_number += 1
        self._writer.put(piece, name, env_name)

    def cut(self, rows: Sequence[int] | None = None) -> None:
        """Hands over the unfinished pieces of `rows`, or of all; the next ones go on from their ends."""
        if self._pieces is not None:
            unfinished = self._pieces.lengths > 0
            if rows is not None:
                unfinished &= np.isin(np.arange(self.num_envs), rows)
            self._cut_rows(self._pieces, np.flatnonzero(unfinished))

    def replace_current(self, row: int, inputs: PolicyInput) -> None:
        """Lets a piece that has no transition yet begin with another timestep."""
        if self._pieces is not None:
            self._pieces.replace_current(row, inputs)

    def flush(self) -> None:
        """Waits until everything handed over is on disk; raises TrajectoryWriteError if a write fails."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flushes and ends the writing thread. Unfinished pieces are dropped: call `cut` before."""
        if self._writer is not None:
            atexit.unregister(self._at_exit)
            try:
                self._writer.flush()
            finally:
                self._writer.stop()

    @property
    def saved_files(self) -> int:
        """How many files this recorder has written; `on_written` tells which."""
        return 0 if self._writer is None else self._writer.files_written

    @property
    def unsaved_frames(self) -> int:
        """Transitions recorded that are not in a whole file yet: what would be lost if the process were killed."""
        if self._writer is None or self._pieces is None:
            return 0
        return int(self._pieces.lengths.sum()) + self._writer.pending_transitions

    @property
    def frames_by_env_name(self) -> dict[str, int]:
        """Transitions recorded under each environment name."""
        self._settle_counts()
        return dict(self._frames)

    def _settle_counts(self) -> None:
        for counts in self._counts.values():
            counts.settle()

    def state_dict(self) -> dict[str, Any]:
        """Counters, the number of the next file and the random state, all JSON-able.

        Unfinished pieces are not in it: `cut` and reset before a checkpoint.
        """
        return {
            "total_frames": self.total_frames,
            "frames_by_env_name": self.frames_by_env_name,
            "writer_id": self._writer_id,
            "sequence_number": self._sequence_number,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave; raises KeyError if an entry is missing."""
        self.total_frames = int(state["total_frames"])
        self._counts.clear()
        self._frames = {str(name): int(count) for name, count in state["frames_by_env_name"].items()}
        self._writer_id = str(state["writer_id"])
        self._sequence_number = int(state["sequence_number"])
        self._rng.bit_generator.state = state["rng"]


def _cut_at_exit(recorder: "weakref.ref[TrajectoryRecorder]", owner: int) -> None:
    """Hands over the unfinished pieces of a recorder that nobody closed."""
    alive = recorder()
    # A process forked from the owner holds a copy of the pieces, but they are not its own.
    if alive is not None and os.getpid() == owner:
        alive.cut()
