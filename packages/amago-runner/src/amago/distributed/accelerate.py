"""The processes of a run, one or many, through accelerate.

`accelerate launch script.py` starts several; each trains on batches of its own and gradients are averaged.
accelerate places the processes and moves the gradients. Mixed precision, the learning-rate schedule and
checkpoints stay with the run: accelerate's own would advance the schedule once per process and write pickles.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from torch import Tensor, nn


class Processes:
    """What the parts of a run need to know of the other processes.

    Args:
        accelerator: made by `make_accelerator`.
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
        """Whether this process writes checkpoints, logs and messages."""
        return bool(self.accelerator.is_main_process)

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        device = cast(torch.device, self.accelerator.device)
        # accelerate numbers the CPUs of several processes, which torch.load does not understand.
        return torch.device("cpu") if device.type == "cpu" else device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, or a data-parallel wrapper that averages its gradients over the processes."""
        if self.count == 1:
            return model
        return cast(nn.Module, self.accelerator.prepare_model(model))

    def backward(self, loss: Tensor) -> None:
        """Adds the gradients of `loss`."""
        loss.backward()

    @contextmanager
    def local_gradients(self, model: nn.Module) -> Iterator[None]:
        """Backward passes inside do not average gradients: more are to come before the optimizer steps."""
        if self.count == 1:
            yield
            return
        with self.accelerator.no_sync(model):
            yield

    def any(self, flag: Tensor) -> Tensor:
        """Whether the flag is set in any process, as a tensor on the same device."""
        if self.count == 1:
            return flag
        return cast(Tensor, self.accelerator.reduce(flag.to(torch.float32), reduction="sum")) > 0

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all processes, by rank, in every process."""
        if self.count == 1:
            return [value]
        return list(gather_object([value]))

    def share(self, value: Any) -> Any:
        """The main process's value, in every process."""
        return self.gather(value)[0]

    def wait(self) -> None:
        """Returns once every process is here."""
        if self.count > 1:
            self.accelerator.wait_for_everyone()


def make_accelerator() -> Accelerator:
    """An Accelerator that only places processes and averages gradients.

    Not every head takes part in every loss, hence `find_unused_parameters`; buffers (running statistics) are
    broadcast from the main process before each forward pass, so all processes hold the same.
    """
    data_parallel = DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=True)
    return Accelerator(mixed_precision="no", kwargs_handlers=[data_parallel])
