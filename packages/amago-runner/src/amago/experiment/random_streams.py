"""RandomStreams: the random number generators of a run, each derived from (seed, role, rank, index).

Since a stream is a function of its key, no generator state needs to be saved. Environments and the loader have
NumPy generators of their own. torch samples actions, dropout masks and critic subsets from its global generator,
so `RandomStreams` seeds that for the duration of a context and restores the user's state afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from amago.envs.seeding import stream, stream_seed

# Offset of `next_test`, above every epoch number.
_FIRST_TEST = 2**40


class RandomStreams:
    """The random streams of one process.

    Args:
        seed: Seed of the run. If None it is drawn from the operating system and kept in `seed`.
        rank: Rank of this process.
        device: Device whose torch generator is seeded in addition to the CPU's.
    """

    def __init__(self, seed: int | None, rank: int, device: torch.device) -> None:
        self.seed = secrets.randbits(62) if seed is None else seed
        self.rank = rank
        self.device = device
        self._tests = 0

    def env_seed(self, epoch: int) -> int:
        """Seed of the training environments if they are reset in `epoch`."""
        return stream_seed(self.seed, "env", self.rank, epoch)

    def eval_seed(self, index: int) -> int:
        """Seed of the environments of an evaluation; `index` is the epoch or a number from `next_test`."""
        return stream_seed(self.seed, "eval", self.rank, 2 * index)

    def next_test(self) -> int:
        """A new index for `eval_seed` and `evaluating` that differs from every epoch."""
        self._tests += 1
        return _FIRST_TEST + self._tests

    def recorder(self, index: int = 0) -> np.random.Generator:
        """Generator of the staggered trajectory lengths of recorder number `index`."""
        return stream(self.seed, "recorder", self.rank, index)

    @contextmanager
    def initializing(self) -> Iterator[None]:
        """Seeds torch for the initial weights, equally in every process."""
        with self._torch_seeded(stream_seed(self.seed, "init")):
            yield

    @contextmanager
    def acting(self, epoch: int) -> Iterator[None]:
        """Seeds torch for the actions of data collection in `epoch`."""
        with self._torch_seeded(stream_seed(self.seed, "policy", self.rank, 2 * epoch)):
            yield

    @contextmanager
    def learning(self, epoch: int) -> Iterator[None]:
        """Seeds torch for the updates in `epoch`: dropout, action samples, critic subsets."""
        with self._torch_seeded(stream_seed(self.seed, "policy", self.rank, 2 * epoch + 1)):
            yield

    @contextmanager
    def evaluating(self, index: int) -> Iterator[None]:
        """Seeds torch for the actions of an evaluation."""
        with self._torch_seeded(stream_seed(self.seed, "eval", self.rank, 2 * index + 1)):
            yield

    @contextmanager
    def _torch_seeded(self, seed: int) -> Iterator[None]:
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            # Not torch.manual_seed: it also seeds other devices, whose state fork_rng does not restore.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                with torch.cuda.device(self.device):
                    torch.cuda.manual_seed(seed)
            yield
