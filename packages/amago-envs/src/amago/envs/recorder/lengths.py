"""After how many steps the running piece of an episode is written, although the episode goes on."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# So far beyond any episode that sums with it stay within int64
NEVER = 2**62


@dataclass(frozen=True, slots=True)
class PieceLength:
    """A whole number of transitions, drawn uniformly from [low, high] for every piece."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(
                f"a piece has at least 1 transition and low <= high, got [{self.low}, {self.high}]"
            )

    @classmethod
    def around(cls, save_len: int | float, max_seq_len: int, stagger: bool) -> "PieceLength":
        """The lengths that `traj_save_len` stands for.

        With `stagger` they are drawn from `save_len` ± `max_seq_len`, so that training windows do not always
        begin at the same places of an episode; a `save_len` equal to `max_seq_len` is kept as it is.

        Args:
            save_len: transitions, a whole number or infinity; floats such as 1e10 are taken too.
            max_seq_len: transitions in a training sequence.
            stagger: whether lengths vary.

        Raises:
            ValueError: if `save_len` is no whole number or less than `max_seq_len`.
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
        spread = max_seq_len if stagger and length > max_seq_len else 0
        return cls(length - spread, min(length + spread, NEVER))

    @property
    def varies(self) -> bool:
        """Whether there is anything to draw."""
        return self.low < self.high

    def draw(self, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """Lengths of `count` new pieces; draws nothing if there is no choice."""
        if not self.varies:
            return np.full(count, self.low, np.int64)
        # Half of the time of rng.integers, at every end of an episode; there are far fewer lengths than floats.
        return self.low + (rng.random(count) * (self.high - self.low + 1)).astype(np.int64)
