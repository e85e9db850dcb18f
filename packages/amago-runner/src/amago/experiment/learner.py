"""Updates: batches in, optimizer steps out.

Gradients of `batches_per_update` batches add up to one step; a step clips them, moves the weights and then the
targets. A loss or gradient that is not finite skips the step. On a GPU nobody waits to learn whether it was:
the fused optimizer reads a flag on the device, and the flag reaches the CPU some steps later.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from amago.agent import BaseAgent, Batch
from amago.distributed.accelerate import Processes
from amago.experiment.other_data import other_data_told
from amago.experiment.schedule import WarmupSchedule
from amago.kernels.memory import keep_freed_memory

# How many updates may be under way before the oldest one's flag is waited for.
_UPDATES_IN_FLIGHT = 2


class NonFiniteUpdateError(RuntimeError):
    """Too many updates in a row had a loss or gradient that is not finite; `path` holds the last batch."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


@dataclass(slots=True)
class _PendingCheck:
    """An update whose flag may not have reached the CPU yet."""

    bad: Tensor
    arrived: torch.cuda.Event | None
    batches: list[Batch]

    def wait(self) -> bool:
        if self.arrived is not None:
            self.arrived.synchronize()
        return bool(self.bad.item())

    def ready(self) -> bool:
        return self.arrived is None or self.arrived.query()


class Learner:
    """Trains an agent.

    Args:
        agent: its parameters are updated in place; `forward(batch, log_step)` gives the loss.
        optimizer: steps over the agent's trainable parameters.
        processes: wraps the agent for data-parallel training.
        lr_warmup_steps: updates over which the learning rate rises from 0.
        grad_clip: largest norm of the gradient.
        batches_per_update: batches whose mean gradient makes one step.
        autocast: compute the loss in bf16 where torch deems it safe.
        compile_loss: compile `agent.forward`.
        max_nonfinite: skipped updates in a row after which NonFiniteUpdateError is raised.
        bad_batch_dir: folder for the batch that it names.
    """

    def __init__(
        self,
        agent: BaseAgent,
        optimizer: Optimizer,
        processes: Processes,
        *,
        lr_warmup_steps: int,
        grad_clip: float,
        batches_per_update: int,
        autocast: bool,
        compile_loss: bool,
        max_nonfinite: int,
        bad_batch_dir: Path,
    ) -> None:
        self.agent = agent
        self.optimizer = optimizer
        self.gradient_steps = 0
        self.skipped_updates = 0
        self._processes = processes
        if processes.device.type == "cpu":
            # An update makes and drops the same large buffers again and again.
            keep_freed_memory()
        self._model = processes.wrap(agent)
        # Logged batches run as they are: their diagnostics would be a second program to compile.
        self._quick_model: Callable[..., Tensor] = torch.compile(self._model) if compile_loss else self._model
        self._schedule = WarmupSchedule(optimizer, lr_warmup_steps)
        self._grad_clip = grad_clip
        self._batches_per_update = batches_per_update
        self._autocast = autocast
        self._max_nonfinite = max_nonfinite
        self._bad_batch_dir = bad_batch_dir
        self._parameters = list(agent.trainable_params)
        self._accumulated: list[Batch] = []
        self._finite: Tensor | None = None
        self._pending: deque[_PendingCheck] = deque()
        self._skipped_in_a_row = 0

    def train_batch(self, batch: Batch, log_step: bool) -> tuple[bool, dict[str, Tensor | float]]:
        """Adds one batch's gradient, and steps once `batches_per_update` of them have come together.

        Args:
            batch: on the agent's device.
            log_step: have the agent gather its diagnostics.

        Returns:
            Whether the optimizer stepped, and the metrics if `log_step`; tensors in them are not synchronised.
        """
        last = len(self._accumulated) + 1 == self._batches_per_update
        # The norms of single networks are measured on what the step sees, so before the step clears it.
        metrics = self._backward(batch, log_step, synchronise=last)
        if last:
            metrics |= self._step(log_step)
        return last, metrics

    def finish(self) -> bool:
        """Steps with the batches of an incomplete update, if there are any, and waits for open checks.

        Returns:
            Whether the optimizer stepped.
        """
        stepped = bool(self._accumulated)
        if stepped:
            rescale = self._batches_per_update / len(self._accumulated)
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(rescale)
            self._step(log_step=False)
        while self._pending:
            self._check(self._pending.popleft())
        return stepped

    def _backward(self, batch: Batch, log_step: bool, *, synchronise: bool) -> dict[str, Tensor | float]:
        device_type = batch.rl2s.device.type
        with contextlib.ExitStack() as stack:
            stack.enter_context(other_data_told(self.agent, batch))
            if not synchronise:
                stack.enter_context(self._processes.local_gradients(self._model))
            with torch.autocast(device_type, dtype=torch.bfloat16, enabled=self._autocast):
                loss = (self._model if log_step else self._quick_model)(batch, log_step=log_step)
            self._processes.backward(loss / self._batches_per_update)
        finite = torch.isfinite(loss.detach())
        self._finite = finite if self._finite is None else self._finite & finite
        self._accumulated.append(batch)
        if not log_step:
            return {}
        return {
            "Loss": loss.detach(),
            **{name: _detached(value) for name, value in self.agent.update_info.items()},
        }

    def _step(self, log_step: bool) -> dict[str, Tensor | float]:
        """One optimizer step, or none if a loss or a gradient is not finite; clears the gradients."""
        assert self._finite is not None
        norms = self.agent.get_grad_norms() if log_step else {}
        norm = nn.utils.clip_grad_norm_(self._parameters, self._grad_clip)
        bad = ~(self._finite & torch.isfinite(norm))
        bad = self._processes.any(bad)
        rate = self._schedule.apply(self.gradient_steps)
        self._optimizer_step(bad)
        self.optimizer.zero_grad(set_to_none=True)
        self.gradient_steps += 1
        self._watch(bad, self._accumulated)
        self._accumulated, self._finite = [], None
        return {"Learning Rate": rate, "Grad Norm": norm.detach(), **norms} if log_step else {}

    def _optimizer_step(self, bad: Tensor) -> None:
        if bad.device.type == "cuda" and _reads_found_inf(self.optimizer):
            # Fused optimizers leave weights and moments alone on the device where this flag is set.
            self.optimizer.found_inf = bad.to(torch.float32)  # type: ignore[attr-defined]
            self.optimizer.step()
            self.agent.soft_sync_targets()
        elif not bool(bad):
            self.optimizer.step()
            self.agent.soft_sync_targets()

    def _watch(self, bad: Tensor, batches: list[Batch]) -> None:
        """Notes the outcome of an update and acts on the ones that are known by now."""
        if bad.device.type == "cuda":
            on_cpu = bad.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            self._pending.append(_PendingCheck(on_cpu, arrived, batches))
        else:
            self._pending.append(_PendingCheck(bad, None, batches))
        while self._pending and (self._pending[0].ready() or len(self._pending) > _UPDATES_IN_FLIGHT):
            self._check(self._pending.popleft())

    def _check(self, update: _PendingCheck) -> None:
        if not update.wait():
            self._skipped_in_a_row = 0
            return
        self.skipped_updates += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= self._max_nonfinite:
            path = self._bad_batch_dir / f"step_{self.gradient_steps}_rank_{self._processes.rank}.safetensors"
            save_batches(update.batches, path)
            raise NonFiniteUpdateError(
                f"{self._skipped_in_a_row} updates in a row had a loss or gradient that is not finite; the "
                f"weights are those from before. The last batch is in {path}. Check the rewards and "
                "observations in it, and try a lower learning_rate.",
                path,
            )


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value


def _reads_found_inf(optimizer: Optimizer) -> bool:
    """Whether the optimizer skips a step on the device when `found_inf` is set: torch's fused ones do."""
    return all(bool(group.get("fused")) for group in optimizer.param_groups)


def save_batches(batches: Sequence[Batch], path: Path) -> None:
    """Writes batches to a safetensors file, tensors named `{batch index}/{field}`."""
    tensors: dict[str, Tensor] = {}
    for index, batch in enumerate(batches):
        named: dict[str, Tensor | None] = {f"obs/{key}": value for key, value in batch.obs.items()}
        for name in ("rl2s", "rews", "dones", "actions", "time_idxs", "lengths"):
            named[name] = getattr(batch, name)
        for name, value in named.items():
            if value is not None:
                tensors[f"{index}/{name}"] = value.detach().cpu().contiguous().clone()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def make_adamw(
    parameters: Iterable[nn.Parameter], learning_rate: float, l2_coeff: float, device: torch.device
) -> torch.optim.AdamW:
    """AdamW over `parameters`, fused where torch has it; on a GPU a skipped step then needs no synchronisation."""
    fused = device.type in ("cpu", "cuda")
    return torch.optim.AdamW(list(parameters), lr=learning_rate, weight_decay=l2_coeff, fused=fused)
