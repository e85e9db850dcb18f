"""TimeBreakdown: how much of its time a run spends in each part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

PARTS = (
    "environments",
    "policy",
    "recording",
    "loading",
    "update",
    "waiting",
    "evaluation",
    "checkpoint",
    "other",
)
"""
- environments: steps and resets of the training environments, as long as the main process waits for them.
- policy: actions during collection.
- recording: counting steps, and copying and writing trajectories, as long as the main process waits for it.
- loading: waiting for training batches.
- update: gradients and optimizer steps. A GPU works asynchronously, so part of its time shows up where the main
  process next waits for it.
- waiting: waiting for data or for other processes.
- evaluation: whole evaluations.
- checkpoint: writing and reading checkpoints and the latest policy.
- other: everything else, such as callbacks and logging.
"""


def rates(
    seconds: Mapping[str, float], *, env_steps: int, updates: int, collects: bool, overlaps: bool = False
) -> dict[str, float]:
    """Timesteps and updates per second of an epoch.

    Args:
        seconds: What `TimeBreakdown.take` returned for the epoch.
        env_steps: Timesteps collected in it, by this run or for it.
        updates: Optimizer steps in it.
        collects: Whether this process collects. For one that does not, others collect all the time.
        overlaps: Whether it collects during its updates, so that both take the time of both together.
    """
    collecting = seconds["environments"] + seconds["policy"] + seconds["recording"]
    updating = seconds["loading"] + seconds["update"]
    if overlaps:
        collecting = updating = collecting + updating
    return {
        "steps_per_second": env_steps / ((collecting if collects else seconds["total"]) or math.inf),
        "updates_per_second": updates / (updating or math.inf),
    }


class TimeBreakdown:
    """Stopwatch of a single thread whose every lap belongs to a part of `PARTS`.

    A lap ends where two parts meet, so the parts add up to the total without gaps.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Sets all parts to 0 and begins the first lap."""
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._lap_began = perf_counter()

    def lap(self, part: str) -> None:
        """Ends the current lap as time of `part`; raises KeyError for a part that is not in `PARTS`."""
        now = perf_counter()
        self._seconds[part] += now - self._lap_began
        self._lap_began = now

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Adds the time within to `part`; the time before is "other"."""
        self.lap("other")
        try:
            yield
        finally:
            self.lap(part)

    def take(self) -> dict[str, float]:
        """Seconds of each part and of all together ("total") since the last call or `start`."""
        self.lap("other")
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return {**taken, "total": sum(taken.values())}
