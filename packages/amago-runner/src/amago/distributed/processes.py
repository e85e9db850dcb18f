"""Processes: data-parallel training in one or several processes, through accelerate.

`accelerate launch script.py` starts several processes; each trains on its own batches and gradients are averaged.
accelerate assigns devices and exchanges gradients. Mixed precision, the learning-rate schedule and checkpoints are
our own: accelerate would advance the schedule once per process and write pickles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from torch import Tensor, nn


class Processes:
    """The data-parallel processes of a run.

    Args:
        accelerator: Created by `make_accelerator`.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator

    @property
    def rank(self) -> int:
        """Index of this process, from 0."""
        return int(self.accelerator.process_index)

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(self.accelerator.num_processes)

    @property
    def is_main(self) -> bool:
        """Whether this process writes checkpoints, metrics and messages."""
        return bool(self.accelerator.is_main_process)

    @property
    def device(self) -> torch.device:
        """Device of this process."""
        device = cast(torch.device, self.accelerator.device)
        # accelerate numbers the CPU of several processes ("cpu:1"), which torch.load does not accept.
        return torch.device("cpu") if device.type == "cpu" else device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model, wrapped in DistributedDataParallel if there are several processes."""
        if self.count == 1:
            return model
        return cast(nn.Module, self.accelerator.prepare_model(model))

    def unwrap(self, model: nn.Module) -> Any:
        """The model inside the wrappers of `wrap`, `Accelerator.prepare` and `torch.compile`."""
        model = self.accelerator.unwrap_model(model)
        return getattr(model, "_orig_mod", model)

    @contextmanager
    def local_gradients(self, model: nn.Module) -> Iterator[None]:
        """Backward passes in this context accumulate gradients without averaging them over the processes."""
        if self.count == 1:
            yield
            return
        with self.accelerator.no_sync(model):
            yield

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replaces gradients by their mean over the processes; one missing in some processes counts as 0 there."""
        if self.count == 1:
            return
        used = torch.stack([torch.tensor(float(p.grad is not None)) for p in parameters]).to(self.device)
        used = self.any(used > 0)
        for parameter, is_used in zip(parameters, used.tolist(), strict=True):
            if is_used:
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = cast(Tensor, self.accelerator.reduce(grad, reduction="mean"))

    def any(self, flags: Tensor) -> Tensor:
        """Whether each flag is set in any process, as a tensor on the same device."""
        if self.count == 1:
            return flags
        return cast(Tensor, self.accelerator.reduce(flags.to(torch.float32), reduction="sum")) > 0

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all processes, ordered by rank."""
        if self.count == 1:
            return [value]
        return list(gather_object([value]))

    def share(self, value: Any) -> Any:
        """The main process's value."""
        return self.gather(value)[0]

    def wait(self) -> None:
        """Waits until all processes have called this."""
        if self.count > 1:
            self.accelerator.wait_for_everyone()


def make_accelerator() -> Accelerator:
    """An Accelerator without mixed precision, for any agent.

    `find_unused_parameters` because not every head takes part in every loss; `broadcast_buffers` so that running
    statistics are equal in all processes.
    """
    data_parallel = DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=True)
    return Accelerator(mixed_precision="no", kwargs_handlers=[data_parallel])
