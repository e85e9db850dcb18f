"""Draws files of a replay buffer and passes over those that cannot be read.

A file may vanish between the listing and the read, come into sight late through a network file system, or be no
trajectory. None of these stops a draw: another file is drawn, and what is broken goes to the quarantine.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from amago.hindsight import CorruptTrajectoryError
from amago.loading.buffer_files import BufferFiles
from amago.loading.collate import UnlikeSamplesError
from amago.loading.files import TrajFile
from amago.loading.quarantine import Quarantine, is_gone, is_of_the_machine
from amago.loading.reader import (
    LOOKED_AT,
    USUAL_FILES,
    StrayTrajectoryError,
    TrajReader,
    Usual,
    differences,
)
from amago.loading.windows import Spec, Window

T = TypeVar("T")
Weigh = Callable[[Sequence[TrajFile]], ArrayLike | None]

DRAWS_BETWEEN_LOOKS = 1024
"""Draws after which a process looks for new files, for learners whose data is collected by others."""

WAITS_FOR_FILES = (0.0, 0.01, 0.1, 1.0)
"""Seconds to wait between looks for files when there is none to draw from."""

MOST_STRAYS = 16
"""Files of one kind that a process may put aside for not going with the others, more of them being no accident;
divided among loader workers, each of which may put aside one at least. Workers that start anew count anew."""

REMEDY = (
    "If the environment has changed, start with another dset_name; to go on with this buffer, move the files of "
    "the kind that is not wanted out of it, and those that are wanted back from its quarantine, as they are named."
)


class FileDrawer:
    """Draws from the files of a buffer.

    Args:
        files: the list.
        reader: reads them.
        quarantine: takes the broken ones.

    Attributes:
        may_move: whether this process may take files out of the buffer.
        workers: copies of this that draw side by side.
    """

    def __init__(self, files: BufferFiles, reader: TrajReader, quarantine: Quarantine) -> None:
        self.files, self.reader, self.quarantine = files, reader, quarantine
        self.may_move = False
        self.workers = 1
        self._draws_until_look = 0
        self._strays: dict[Spec, int] = {}

    def refresh(self, *, force: bool = False) -> None:
        """Brings the list of files up to date."""
        self._draws_until_look = DRAWS_BETWEEN_LOOKS
        removed, foreign = self.files.refresh(force=force)
        for file in removed:
            self.reader.drop(file.path)
        for path in foreign:
            self.reject(path, "its name is not that of a trajectory file")

    def usual(self) -> Usual | None:
        """What arrays the files usually have, by their headers where that is not known; None if they differ."""
        if self.reader.usual() is None and len(self.files) >= USUAL_FILES:
            files = self.files.all()
            chosen = random.Random(len(files)).sample(files, min(LOOKED_AT, len(files)))
            self.reader.learn_usual([file.path for file in chosen])
        return self.reader.usual()

    def start_worker(self, workers: int, cache_bytes: int) -> None:
        """Has this copy work beside others; `cache_bytes` is for all of them."""
        self.workers = workers
        self.reader = TrajReader(cache_bytes // workers)

    def draw(self, read: Callable[[TrajFile], T], rng: np.random.Generator, weigh: Weigh | None) -> T:
        """Reads a random file; one that vanished or cannot be read is passed over, and another drawn.

        Args:
            read: reads the file that was drawn.
            rng: source of the draw.
            weigh: gives the weights of the files; None for equal ones.

        Raises:
            RuntimeError: if there is no file that can be read, not even after waiting for a second.
            OSError: if it is the machine that cannot read files.
            TrajectoryTooLargeError: if the file takes too much memory when it is read whole.
        """
        self._draws_until_look -= 1
        if self._draws_until_look < 0:
            self.refresh()
        waits = iter(WAITS_FOR_FILES)
        failure: Exception | None = None
        while True:
            file = self.files.random(rng, weigh)
            if file is None:
                # Files that were passed over may come into sight: of a network file system, or a writer's next.
                self._wait(waits, failure)
                continue
            try:
                return read(file)
            except (OSError, CorruptTrajectoryError) as error:
                failure = error
                self.pass_over(file, error)

    def window(
        self, length: int, padded_sampling: str, rng: np.random.Generator, weigh: Weigh | None
    ) -> Window:
        """A window of a random file as `TrajReader.window` draws it, from another one if that is lost."""

        def of(file: TrajFile) -> Window:
            def draw_another(error: Exception) -> Window:
                self.pass_over(file, error)
                return self.window(length, padded_sampling, rng, weigh)

            return self.reader.window(file.path, length, padded_sampling, rng, draw_another)

        return self.draw(of, rng, weigh)

    def pass_over(self, file: TrajFile, error: Exception) -> None:
        """Takes a file off the list that could not be read.

        Raises:
            OSError: `error`, if it speaks of the machine and not of the file.
            RuntimeError: if many files do not go with the others.
        """
        if isinstance(error, StrayTrajectoryError):
            self._count_stray(error)
        self.reader.drop(file.path)
        if is_of_the_machine(error):
            raise error
        is_bad = self.quarantine.is_bad(file, error)
        if is_bad or is_gone(error):
            is_stale = isinstance(error, OSError) and error.errno == errno.ESTALE
            self.files.forget(file, for_good=is_bad, for_now=not is_stale)
            if is_bad:
                self.reject(Path(file.path), str(error))
            self.refresh()

    def reject(self, path: Path, reason: str) -> None:
        """Warns about what is no trajectory, and moves it to the quarantine if this process may."""
        self.quarantine.take(path, reason, may_move=self.may_move)

    @contextmanager
    def mixing_explained(self) -> Iterator[None]:
        """Adds to errors of windows that fit no common batch which files are of which kind."""
        try:
            yield
        except UnlikeSamplesError as error:
            if len(self.reader.kinds) < 2:
                raise
            (one, path), (other, other_path) = list(self.reader.kinds.items())[:2]
            raise UnlikeSamplesError(
                f"{error}. Files differ, such as {path} and {other_path}: only one side has "
                f"{differences(one, other)}. {REMEDY}"
            ) from error

    def _count_stray(self, error: StrayTrajectoryError) -> None:
        """Stops before a whole kind of files is put aside: it may be the one that is wanted."""
        most = max(1, MOST_STRAYS // self.workers)
        met = self._strays.get(error.spec, 0) + 1
        if met <= most:
            self._strays[error.spec] = met
            return
        done = f"has moved {most} of one of them to {self.quarantine.folder}"
        if not self.may_move:
            done = f"has passed over {most} of one of them"
        done += ", and other loader workers as many each at most" if self.workers > 1 else ""
        raise RuntimeError(
            f"{Path(error.path).parent} holds files of two kinds, and this process {done}. "
            f"{error.usual_path} has {_in_words(error.usual)}; {error.path} has {_in_words(error.spec)}. {REMEDY}"
        ) from error

    def _wait(self, waits: Iterator[float], failure: Exception | None) -> None:
        seconds = next(waits, None)
        if seconds is None:
            folders = f"{self.files.fifo.path} or {self.files.protected.path}"
            if failure is None:
                raise RuntimeError(
                    f"there are no trajectory files in {folders}: collect some, or wait until ready_for_training"
                )
            raise RuntimeError(
                f"there are no trajectory files in {folders} that can be read: {failure}"
            ) from failure
        time.sleep(seconds)
        self.refresh(force=True)


def _in_words(spec: Spec) -> str:
    return ", ".join(f"{field} {field.dtype}{field.row_shape}" for field in spec)
