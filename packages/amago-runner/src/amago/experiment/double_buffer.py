"""Double buffering: while one half of the environments steps, the agent acts for the other.

It hides the shorter of the two times behind the longer one, and costs a second call of the agent per step and more
messages to worker processes. Which weighs more depends on the environments, the agent and the machine, so it is
found out by trying both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from amago.envs.vector import PartedVectorEnv, VectorStep
from amago.experiment.lane import Lane
from amago.nets.traj_encoders.hidden_rows import (
    RowAxes,
    hidden_row_axes,
    join_hidden_states,
    split_hidden_state,
)

# Both ways are tried in turn, so that what else the machine does meanwhile falls on both.
ROUNDS, WARM_UP, MEASURED = 8, 8, 32  # steps that are not looked at, and that are, of each way in each round
CLEARLY = 0.95  # the other way must take less than this part of the time


class Choice:
    """Whether steps are double-buffered: as told, or after trying both ways for 320 steps each.

    Args:
        wanted: True or False; None finds out.
        clock: seconds.

    Attributes:
        overlapped: how the next step is to be done.
        undecided: whether `note` is to be called after every step.
    """

    def __init__(self, wanted: bool | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.overlapped = bool(wanted)
        self.undecided = wanted is None
        self._clock = clock
        self._began = 0.0
        self._seconds: list[float] = []
        self._measured: dict[bool, list[float]] = {False: [], True: []}

    @property
    def steps_left(self) -> float:
        """Steps until `overlapped` may change."""
        return WARM_UP + MEASURED - len(self._seconds) if self.undecided else math.inf

    def begin(self) -> None:
        """The next step begins now, after other things were done."""
        self._began = self._clock()

    def note(self) -> None:
        """A step was done."""
        now = self._clock()
        self._seconds.append(now - self._began)
        self._began = now
        if self.steps_left > 0:
            return
        self._measured[self.overlapped] += self._seconds[WARM_UP:]
        self._seconds = []
        self.overlapped = not self.overlapped
        if len(self._measured[True]) == ROUNDS * MEASURED:
            self.settle(is_quicker(self._measured[True], self._measured[False]))

    def settle(self, overlapped: bool) -> None:
        """Ends the trial."""
        self.overlapped, self.undecided = overlapped, False


def is_quicker(overlapped: Sequence[float], plain: Sequence[float]) -> bool:
    """Whether steps that took these seconds are clearly quicker; medians leave out what disturbs a few of them."""
    return statistics.median(overlapped) < CLEARLY * statistics.median(plain)


class Halves:
    """The two parts of a vector environment, each with a lane of its own.

    While they are apart, the hidden states are those of the halves, and `whole` has none.

    Args:
        vector_env: has two parts.
        whole: the lane of all rows.
        lanes: those of the parts.
    """

    def __init__(self, vector_env: PartedVectorEnv, whole: Lane, lanes: Sequence[Lane]) -> None:
        self.apart = False
        self._vector_env = vector_env
        self._whole = whole
        self.lanes = lanes
        self._axes: RowAxes | None = None

    def separate(self) -> None:
        """Divides the hidden state.

        Raises:
            TypeError, ValueError: if it cannot be divided; then nothing has happened.
        """
        whole = self._whole
        if self._axes is None:
            # Also of the numbers of rows that it will act for: where it cannot, that shows here.
            sizes = {1, 2, whole.num_rows, *(lane.num_rows for lane in self.lanes)}
            self._axes = hidden_row_axes({rows: whole.first_hidden_state(rows) for rows in sorted(sizes)})
        self.divide(whole.hidden_state)
        for part, lane in enumerate(self.lanes):
            lane.inputs = self._vector_env.inputs_of(part)
        whole.hidden_state, self.apart = None, True

    def divide(self, hidden_state: Any) -> None:
        """Gives each half its rows of a hidden state; raises as `separate`."""
        assert self._axes is not None
        states = split_hidden_state(hidden_state, self._axes, [lane.num_rows for lane in self.lanes])
        for lane, state in zip(self.lanes, states, strict=True):
            lane.hidden_state = state

    def joined(self) -> Any:
        """The hidden state of both halves."""
        assert self._axes is not None
        return join_hidden_states([lane.hidden_state for lane in self.lanes], self._axes)

    def join(self) -> None:
        """Puts the hidden state together again."""
        self._whole.hidden_state = self.joined()
        self.forget()

    def forget(self) -> None:
        """Ends being apart with the hidden state that `whole` has."""
        self.apart = False
        for lane in self.lanes:
            lane.hidden_state = None

    def send(self, part: int, sample: bool) -> None:
        """Acts in a half, and does not wait for its environments."""
        self._vector_env.send(part, self.lanes[part].act(sample))

    def receive(self, part: int) -> VectorStep:
        """Waits for the environments of a half."""
        return self._vector_env.receive(part)
