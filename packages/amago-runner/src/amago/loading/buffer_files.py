"""The files of a replay buffer as one list to draw from, and how loader workers hear of changes to it.

The list is that of `protected` followed by that of `fifo`, each ordered by writer and sequence number, so that
processes and runs which know the files from different listings draw the same ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from amago.loading.files import LARGE, TrajFile, TrajFolder

MOST_NEWS = 4096
"""Names that workers are told of; if more change between two epochs, they list the folder themselves."""


class News(NamedTuple):
    """Files that the main process itself wrote and deleted before an epoch."""

    number: int
    written: tuple[str, ...]
    deleted: tuple[str, ...]


class BufferFiles:
    """The files of two folders.

    Args:
        fifo: the folder of which files are deleted.
        protected: the other one.
    """

    def __init__(self, fifo: TrajFolder, protected: TrajFolder) -> None:
        self.fifo, self.protected = fifo, protected
        self._up_to: NDArray[np.float64] | None = None
        self._changes = 0
        self._news: deque[News] = deque()
        self._news_number = 0
        self._written: list[str] = []
        self._deleted: list[str] = []

    def __len__(self) -> int:
        """Number of files."""
        return len(self.fifo.files) + len(self.protected.files)

    def all(self) -> list[TrajFile]:
        """The files in the order in which they are drawn from."""
        return self.protected.ordered + self.fifo.ordered

    def refresh(self, *, force: bool = False) -> tuple[list[TrajFile], list[Path]]:
        """Brings the lists up to date; returns files that are gone and files that are no trajectories'."""
        removed: list[TrajFile] = []
        foreign: list[Path] = []
        self.take_written()
        for folder in (self.protected, self.fifo):
            listing = folder.refresh(force=force)
            removed += listing.removed
            foreign += [folder.path / name for name in listing.foreign]
            if listing.added or listing.removed:
                self.reweigh()
        return removed, foreign

    def take_written(self) -> None:
        """Takes up what was noted as written to `fifo`."""
        came = self.fifo.take_written()
        if came:
            self.reweigh()
            self._written += [file.name for file in came]

    def note_deleted(self, names: Iterable[str]) -> None:
        """Takes files of `fifo` off the list which this process has deleted."""
        names = list(names)
        self.fifo.note_deleted(names)
        self._deleted += names
        self.reweigh()

    def forget(self, file: TrajFile, *, for_good: bool, for_now: bool) -> None:
        """Takes a file off the list that cannot be read; see `TrajFolder.forget`."""
        for folder in (self.fifo, self.protected):
            folder.forget(file, for_good=for_good, for_now=for_now)
        self.reweigh()

    def reweigh(self) -> None:
        """Has the weights asked for anew."""
        self._up_to = None
        self._changes += 1

    def random(
        self, rng: np.random.Generator, weigh: Callable[[list[TrajFile]], ArrayLike | None] | None
    ) -> TrajFile | None:
        """Draws a file, by the weights that `weigh` gives for the list; None if there is no file.

        Raises:
            ValueError: if the weights do not fit the list.
        """
        count = len(self)
        if not count:
            return None
        if weigh is None:
            return self._file(int(rng.random() * count))
        if self._up_to is None:
            changes = self._changes
            weights = weigh(self.all())
            if self._changes != changes:  # weighing found files that cannot be read
                return self.random(rng, weigh)
            self._up_to = np.arange(1.0, count + 1) if weights is None else _sums(weights, count)
        drawn = rng.random() * self._up_to[-1]
        return self._file(int(np.searchsorted(self._up_to, drawn, side="right")))

    def news(self) -> tuple[News, ...] | None:
        """What workers need to know to have the list of this process; None while folders are quickly listed."""
        if len(self.fifo.files) <= LARGE:
            self._written, self._deleted = [], []
            return None
        if self._written or self._deleted:
            self._news_number += 1
            self._news.append(News(self._news_number, tuple(self._written), tuple(self._deleted)))
            self._written, self._deleted = [], []
        while sum(len(news.written) + len(news.deleted) for news in self._news) > MOST_NEWS:
            self._news.popleft()
        return (*self._news, News(self._news_number + 1, (), ()))

    def start_over(self) -> None:
        """Has workers list the folders, because more has changed than news tell."""
        self._news.clear()
        self._news_number += 1

    def load_news(self, told: tuple[News, ...] | None) -> None:
        """Takes what `news` gave in the main process, in a worker's copy."""
        if told is None:
            return
        unknown = [news for news in told if news.number > self._news_number]
        if unknown and unknown[0].number > self._news_number + 1:
            self.refresh(force=True)
        else:
            for news in unknown:
                for name in news.written:
                    self.fifo.note_written(name)
                self.fifo.take_written()
                self.fifo.note_deleted(news.deleted)
        self.reweigh()
        self._news_number = told[-1].number - 1

    def _file(self, place: int) -> TrajFile:
        protected = self.protected.ordered
        return protected[place] if place < len(protected) else self.fifo.ordered[place - len(protected)]


def _sums(weights: ArrayLike, count: int) -> NDArray[np.float64]:
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"sampling_weights must give numbers, one per file, not {weights!r}") from error
    if array.shape != (count,):
        raise ValueError(
            f"sampling_weights must give {count} weights, one per file, not the shape {array.shape}"
        )
    if not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError("sampling_weights must be finite, at least 0, and not all 0")
    # The largest as 1: sums of huge weights would be infinite, and those of tiny ones too coarse to draw from.
    sums: NDArray[np.float64] = np.cumsum(array / array.max())
    return sums
