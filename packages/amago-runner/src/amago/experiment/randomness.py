"""Random numbers of a run: every stream is a function of (seed, role, rank, index), so none needs saving.

Environments and the loader have generators of their own. torch draws action samples, dropout masks and critic
subsets from its global generator; `RandomStreams.torch` lends it a stream for a while and then puts the user's
state back, so a training script that draws from torch itself neither disturbs a run nor is disturbed by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from amago.envs.seeding import stream, stream_seed

# Indices within the role "policy": even ones act, odd ones learn; one pair per epoch.
_ACT, _LEARN = 0, 1
# Indices within the role "eval": environments and policy of one evaluation.
_EVAL_ENVS, _EVAL_POLICY = 0, 1
# Evaluations outside of `learn` draw from above every epoch, counted up per call.
_FIRST_TEST = 2**40


class RandomStreams:
    """The streams of one process.

    Args:
        seed: the run's seed; None draws one from the operating system, kept in `seed` and in checkpoints.
        rank: index of this process among the processes of the run.
        device: the device whose torch generator is lent streams besides the CPU's.
    """

    def __init__(self, seed: int | None, rank: int, device: torch.device) -> None:
        self.seed = secrets.randbits(62) if seed is None else seed
        self.rank = rank
        self.device = device
        self._tests = 0

    def env_seed(self, epoch: int) -> int:
        """Seed of the training environments when they are reset at the start of `epoch`."""
        return stream_seed(self.seed, "env", self.rank, epoch)

    def eval_seed(self, epoch: int) -> int:
        """Seed of the validation environments in `epoch`."""
        return stream_seed(self.seed, "eval", self.rank, 2 * epoch + _EVAL_ENVS)

    def next_test(self) -> int:
        """A number to pass to `eval_seed` and `evaluating`, different at every call and from every epoch."""
        self._tests += 1
        return _FIRST_TEST + self._tests

    def recorder(self) -> np.random.Generator:
        """Generator of the lengths at which trajectories are cut."""
        return stream(self.seed, "recorder", self.rank)

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """torch draws the initial weights: the same in every process."""
        with self._torch(stream_seed(self.seed, "init")):
            yield

    @contextmanager
    def acting(self, epoch: int) -> Iterator[None]:
        """torch draws the actions of training rollouts in `epoch`."""
        with self._torch(stream_seed(self.seed, "policy", self.rank, 2 * epoch + _ACT)):
            yield

    @contextmanager
    def learning(self, epoch: int) -> Iterator[None]:
        """torch draws what updates in `epoch` need: dropout, action samples, critic subsets."""
        with self._torch(stream_seed(self.seed, "policy", self.rank, 2 * epoch + _LEARN)):
            yield

    @contextmanager
    def evaluating(self, epoch: int) -> Iterator[None]:
        """torch draws the actions of an evaluation."""
        with self._torch(stream_seed(self.seed, "eval", self.rank, 2 * epoch + _EVAL_POLICY)):
            yield

    @contextmanager
    def _torch(self, seed: int) -> Iterator[None]:
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            # torch.manual_seed would also seed the other devices, which nobody would put back.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                with torch.cuda.device(self.device):
                    torch.cuda.manual_seed(seed)
            yield
