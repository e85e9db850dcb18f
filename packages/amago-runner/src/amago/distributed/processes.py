"""Processes: data-parallel training in one or several processes, through accelerate.

`torchrun` or `accelerate launch` starts several processes; each trains on its own batches and gradients are
averaged. accelerate assigns devices and wraps the model. Mixed precision, the learning-rate schedule and
checkpoints are our own: accelerate would advance the schedule once per process and write pickles.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs, gather_object
from torch import Tensor, nn

from amago.distributed.fsdp import shard
from amago.distributed.launch_settings import check_launch_settings, share_cores
from amago.distributed.peer_watch import Meeting, PeerWatch, connect

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long processes wait for each other, e.g. for the one with the slowest environments."""

_CONNECT_SECONDS = 180.0


class Processes:
    """The data-parallel processes of a run.

    Args:
        accelerator: Created by `make_accelerator`.

    Attributes:
        is_sharded: Whether `wrap` has sharded a model.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.is_sharded = False

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

    def wrap(self, model: nn.Module, *, fsdp: bool = False) -> nn.Module:
        """The model, wrapped in DistributedDataParallel if there are several processes.

        Args:
            model: The agent.
            fsdp: Shard its trajectory encoder instead, see `amago.distributed.fsdp`; the agent itself is returned.

        Raises:
            ValueError: `fsdp` in a single process.
        """
        if fsdp and self.count == 1:
            raise ValueError(
                "fsdp is True, but there is one process, so nothing can be sharded: start several, e.g. with "
                "torchrun --nproc_per_node=N, or set fsdp=False"
            )
        if fsdp:
            for tensor in model.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
            shard(cast(nn.Module, model.traj_encoder), self.count, self.device)
            self.is_sharded = True
            return model
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
        if self.count == 1 or self.is_sharded:  # shares of gradients are accumulated, not whole ones
            yield
            return
        with self.accelerator.no_sync(model):
            yield

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replaces gradients by their mean over the processes; one missing in some processes counts as 0 there."""
        if self.count == 1 or not parameters:
            return
        used = torch.tensor([p.grad is not None for p in parameters]).to(self.device)
        trained = [p for p, is_used in zip(parameters, self.any(used).tolist(), strict=True) if is_used]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        means = self.mean(flat).split([p.numel() for p in trained])
        for parameter, mean in zip(trained, means, strict=True):
            parameter.grad = mean.view_as(parameter)

    def any(self, flags: Tensor) -> Tensor:
        """Whether each flag is set in any process, as a tensor on the same device."""
        if self.count == 1:
            return flags
        return cast(Tensor, self.accelerator.reduce(flags.to(torch.float32), reduction="sum")) > 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the processes."""
        if self.count == 1:
            return tensor
        return cast(Tensor, self.accelerator.reduce(tensor, reduction="sum"))

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean of a tensor over the processes."""
        if self.count == 1:
            return tensor
        return cast(Tensor, self.accelerator.reduce(tensor, reduction="mean"))

    def mean_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The mean over the processes of every metric that is a number; each is a mean over those that have it."""
        if self.count == 1:
            return dict(metrics)
        numbers = {
            name: float(value)
            for name, value in metrics.items()
            if isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
        }
        found: dict[str, list[float]] = {}
        for each in self.gather(numbers):
            for name, number in each.items():
                found.setdefault(name, []).append(number)
        return {**metrics, **{name: statistics.fmean(values) for name, values in found.items()}}

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all processes, ordered by rank."""
        if self.count == 1:
            return [value]
        return list(gather_object([value]))

    def broadcast_from_main(self, value: Any) -> Any:
        """The main process's value, in all processes."""
        return self.gather(value)[0]

    def barrier(self) -> None:
        """Waits until all processes have called this."""
        if self.count > 1:
            self.accelerator.wait_for_everyone()


def make_accelerator(mixed_precision: str = "no") -> Accelerator:
    """Creates the Accelerator of this process, which shares the cores of its machine with the others.

    accelerate's own mixed precision is off: the learner and the policy use autocast. `find_unused_parameters`
    because not every head takes part in every loss; `broadcast_buffers` so that running statistics are equal in
    all processes.

    Args:
        mixed_precision: "no" or "bf16", as the run is configured.

    Raises:
        ValueError: accelerate is asked for something by environment variables that would have no effect.
    """
    check_launch_settings(mixed_precision)
    # accelerate leaves the processes of torchrun apart where there is no GPU, unless it is told to use the CPU.
    is_rank = int(os.environ.get("LOCAL_RANK", "-1")) >= 0
    accelerator = Accelerator(
        cpu=is_rank and not torch.accelerator.is_available(),
        mixed_precision="no",
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=True),
            InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
        ],
    )
    if accelerator.num_processes > 1:
        _meet()
    return accelerator


@functools.cache  # once per process
def _meet() -> PeerWatch:
    """Shares the cores of each machine among its processes, and lets the death of one process end the others."""
    processes = Processes(Accelerator(mixed_precision="no"))
    others = set(range(1, processes.count))
    meeting = Meeting() if processes.is_main else None
    own = (socket.gethostname(), 0 if meeting is None else meeting.port, secrets.token_hex(16))
    everyone = processes.gather(own)
    share_cores([host for host, _, _ in everyone])
    _, port, secret = everyone[0]
    if meeting is not None:
        return PeerWatch(0, meeting.accept(others, secret, _CONNECT_SECONDS))
    host = os.environ.get("MASTER_ADDR", "localhost")
    return PeerWatch(processes.rank, {0: connect(host, port, processes.rank, secret, _CONNECT_SECONDS)})
