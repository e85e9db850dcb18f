"""Learner: gradient accumulation, clipping, optimizer steps, target updates and the check for non-finite updates.

The gradient of an update is that of one batch with the sequences of all its micro-batches in all processes: each
loss, a mean over the real transitions of its batch, is weighed by their number. InputNorm and PopArt cover all
processes too, but take micro-batches one after the other.

On a GPU the check does not synchronize: the fused optimizer skips its step when a flag on the device is set, and
the flag is copied to the CPU asynchronously and read a few updates later.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from amago.agent import Agent, BaseAgent, Batch
from amago.agent.return_head import RegressionHead
from amago.distributed import fsdp
from amago.distributed.processes import Processes
from amago.envs.env_utils import available_cores
from amago.kernels.memory import keep_freed_memory
from amago.nets.specs import as_obs_spec
from amago.utils import amago_warning

# Multiplications of the largest layer for a batch, below which one thread is at least as quick as two: waking a
# thread takes some 100 us, and an update has a thousand operations. See docs/performance.md.
_WORTH_THREADS = 400_000_000
# Maximum number of flags in transfer; above it, the learner waits for the oldest one.
_UPDATES_IN_FLIGHT = 2


class NonFiniteUpdateError(RuntimeError):
    """Too many consecutive updates had a non-finite loss or gradient.

    Attributes:
        path: Safetensors file with the batches of the last such update.
    """

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


@dataclass(slots=True)
class _PendingCheck:
    """An update whose non-finite flag may not have been copied to the CPU yet."""

    nonfinite: Tensor
    copied: torch.cuda.Event | None
    batches: list[Batch]

    def result(self) -> bool:
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.nonfinite.item())

    def ready(self) -> bool:
        return self.copied is None or self.copied.query()


class Learner:
    """Trains an agent on batches.

    Args:
        model: Agent to train, in place, wrapped by `processes.wrap`; called with a batch it returns the loss.
        optimizer: Optimizer of the agent's trainable parameters.
        processes: Data-parallel processes.
        lr_schedule: Learning-rate schedule of the optimizer; it takes a step after every optimizer step.
        grad_clip: Maximum norm of the gradient.
        batches_per_update: Batches whose joint gradient makes one optimizer step.
        autocast: Compute the loss under bf16 autocast.
        compile_loss: Compile the agent's loss with `torch.compile`.
        max_nonfinite: Consecutive skipped updates after which NonFiniteUpdateError is raised.
        bad_batch_dir: Folder for the batches of the last of them.

    Attributes:
        agent: The agent without the wrappers.
        gradient_steps: Optimizer steps so far, including skipped ones.
        skipped_updates: Skipped optimizer steps so far.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        processes: Processes,
        *,
        lr_schedule: LRScheduler,
        grad_clip: float,
        batches_per_update: int,
        autocast: bool,
        compile_loss: bool,
        max_nonfinite: int,
        bad_batch_dir: Path,
    ) -> None:
        self.model = model
        self.agent: BaseAgent = processes.unwrap(model)
        self.optimizer = optimizer
        self.lr_schedule = lr_schedule
        self.gradient_steps = 0
        self.skipped_updates = 0
        if processes.device.type == "cpu":
            # Each update allocates and frees buffers of the same sizes.
            keep_freed_memory()
        # Logged batches run uncompiled: their diagnostics would need a second compiled graph.
        self._quick_model: Callable[..., Tensor] = torch.compile(self.model) if compile_loss else self.model
        self._processes = processes
        self._grad_clip = grad_clip
        self._batches_per_update = batches_per_update
        self._autocast = autocast
        self._max_nonfinite = max_nonfinite
        self._bad_batch_dir = bad_batch_dir
        self._parameters = list(dict.fromkeys(self.agent.trainable_params))
        self._accumulated: list[Batch] = []
        self._transitions = 0  # real ones of the accumulated batches
        self._finite: Tensor | None = None
        self._pending: deque[_PendingCheck] = deque()
        self._consecutive_skips = 0
        self._has_warned = False  # skipped_updates may come from a checkpoint

    def train_batch(self, batch: Batch, log_step: bool) -> dict[str, Tensor | float]:
        """Computes the gradient of one batch and, once per `batches_per_update` batches, steps the optimizer.

        Args:
            batch: Batch on the agent's device.
            log_step: Let the agent compute its diagnostics.

        Returns:
            Metrics if `log_step`, else an empty dictionary. Tensors in it are not synchronized.

        Raises:
            ValueError: the batch does not match the agent's observation or action space.
            NonFiniteUpdateError: too many consecutive updates were not finite.
        """
        is_last = len(self._accumulated) + 1 == self._batches_per_update
        metrics = self._backward(batch, log_step, average=is_last)
        if is_last:
            metrics |= self._step(log_step)
        return metrics

    def finish(self) -> None:
        """Steps the optimizer with the batches of an incomplete update, if any, and waits for pending checks."""
        if self._accumulated:
            # Gradients of an incomplete update were accumulated without averaging over the processes.
            if not self._processes.is_sharded:
                self._processes.average_gradients(self._parameters)
            self._step(log_step=False)
        while self._pending:
            self._handle_check(self._pending.popleft())

    def _backward(self, batch: Batch, log_step: bool, *, average: bool) -> dict[str, Tensor | float]:
        model = self.model if log_step else self._quick_model
        with contextlib.ExitStack() as stack:
            stack.enter_context(_mismatch_explained(self.agent, batch))
            if not average:
                stack.enter_context(self._processes.local_gradients(self.model))
            with torch.autocast(batch.rl2s.device.type, dtype=torch.bfloat16, enabled=self._autocast):
                loss = model(batch, log_step=log_step)
            self._weigh(loss, batch).backward()
        finite = torch.isfinite(loss.detach())
        self._finite = finite if self._finite is None else self._finite & finite
        self._accumulated.append(batch)
        if not log_step:
            return {}
        return {
            "Loss": loss.detach(),
            **{name: _detached(value) for name, value in self.agent.update_info.items()},
        }

    @property
    def _is_divided(self) -> bool:
        """Whether the batch of an update is divided among several processes or micro-batches."""
        return self._processes.count > 1 or self._batches_per_update > 1

    def _weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        """The loss times the number of real transitions; `_divide_gradients` divides by their sum."""
        if not self._is_divided:
            return loss
        transitions = len(batch.real_transitions())
        self._transitions += transitions
        return loss * transitions

    def _divide_gradients(self) -> None:
        """Divides the gradients, means over the processes, by the mean number of transitions in a process."""
        if not self._is_divided:
            return
        transitions = torch.tensor(float(self._transitions)).to(self._processes.device)
        grads = [fsdp.local(p.grad) for p in self._parameters if p.grad is not None]
        torch._foreach_div_(grads, self._processes.mean(transitions).clamp_min(1.0))
        self._transitions = 0

    def _step(self, log_step: bool) -> dict[str, Tensor | float]:
        """Steps the optimizer unless a loss or gradient is non-finite, and clears the gradients."""
        assert self._finite is not None
        if self._processes.is_sharded:  # gradients of shares were averaged in the backward pass
            self._processes.average_gradients([p for p in self._parameters if not fsdp.is_sharded(p)])
        self._divide_gradients()
        # The norms of single networks, before clipping changes them.
        norms = fsdp.unsharded(self.agent.get_grad_norms()) if log_step else {}
        if self._processes.is_sharded:
            norm = fsdp.clip_grad_norm_(self._parameters, self._grad_clip, self._processes.sum)
        else:
            norm = nn.utils.clip_grad_norm_(self._parameters, self._grad_clip)
        nonfinite = self._processes.any(~(self._finite & torch.isfinite(norm)))
        learning_rate = self.lr_schedule.get_last_lr()[0]
        self._step_unless(nonfinite)
        self.optimizer.zero_grad(set_to_none=True)
        self.gradient_steps += 1
        self._add_check(nonfinite, self._accumulated)
        self._accumulated, self._finite = [], None
        if not log_step:
            return {}
        return {"Learning Rate": learning_rate, "Grad Norm": norm.detach(), **norms}

    def _step_unless(self, nonfinite: Tensor) -> None:
        if nonfinite.device.type == "cuda" and all(bool(g.get("fused")) for g in self.optimizer.param_groups):
            # Fused optimizers read this flag on the device and then leave weights and moments unchanged.
            self.optimizer.found_inf = nonfinite.to(torch.float32)  # type: ignore[attr-defined]
        elif bool(nonfinite):
            return
        self.optimizer.step()
        self.lr_schedule.step()
        self.agent.soft_sync_targets()

    def _add_check(self, nonfinite: Tensor, batches: list[Batch]) -> None:
        """Queues the check of an update and handles those whose flag has arrived."""
        if nonfinite.device.type == "cuda":
            on_cpu = nonfinite.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            self._pending.append(_PendingCheck(on_cpu, copied, batches))
        else:
            self._pending.append(_PendingCheck(nonfinite, None, batches))
        while self._pending and (self._pending[0].ready() or len(self._pending) > _UPDATES_IN_FLIGHT):
            self._handle_check(self._pending.popleft())

    def _handle_check(self, update: _PendingCheck) -> None:
        if not update.result():
            self._consecutive_skips = 0
            return
        self.skipped_updates += 1
        self._consecutive_skips += 1
        if not self._has_warned:
            self._has_warned = True
            amago_warning(
                "an update had a non-finite loss or gradient and was skipped; 'skipped_updates' in the metrics "
                "counts them. Check the rewards and observations of the environment."
            )
        if self._consecutive_skips >= self._max_nonfinite:
            path = self._bad_batch_dir / f"step_{self.gradient_steps}_rank_{self._processes.rank}.safetensors"
            save_batches(update.batches, path)
            raise NonFiniteUpdateError(
                f"{self._consecutive_skips} updates in a row had a non-finite loss or gradient and were skipped. "
                f"The last batch is in {path}. Check its rewards and observations, and try a lower learning_rate.",
                path,
            )


def threads_for(agent: nn.Module, timesteps: int) -> int:
    """Number of threads for updates on a CPU: 1, or more if a layer is large or a convolution.

    That is torch's number, but at most that of the available cores: torch does not know a container's CPU quota.

    Args:
        agent: Agent to train.
        timesteps: Timesteps of a batch.
    """
    largest, most = 0, min(torch.get_num_threads(), available_cores())
    for name, module in agent.named_modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            return most
        rows = timesteps
        if isinstance(agent, Agent) and name.startswith("critics") and not _evaluates_every_action(agent):
            rows *= len(agent.gammas)  # each discount has actions of its own
        for weight in module.parameters(recurse=False):
            if weight.dim() >= 2 and not isinstance(module, nn.Embedding):
                largest = max(largest, rows * weight.shape[-1] * weight.shape[-2])
    return 1 if largest < _WORTH_THREADS else most


def _evaluates_every_action(agent: Agent) -> bool:
    """Whether the critics take states alone."""
    return agent.discrete and isinstance(agent.return_head, RegressionHead)


@contextlib.contextmanager
def _mismatch_explained(agent: BaseAgent, batch: Batch) -> Iterator[None]:
    """Turns a shape error of the networks into a ValueError that names the mismatching arrays of the batch.

    Batches are not checked in advance: a dataset may contain more than the agent needs.
    """
    try:
        yield
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AssertionError) as error:
        mismatches = _mismatches(agent, batch)
        if not mismatches:
            raise
        raise ValueError(
            f"the dataset's trajectories do not fit the environment: {'; '.join(mismatches)}. They come from "
            "another environment, or from this one before it was changed: use another dset_name, or move the files"
        ) from error


def _mismatches(agent: BaseAgent, batch: Batch) -> list[str]:
    """Descriptions of the arrays whose shape differs from the agent's spaces."""
    found = []
    for key, spec in as_obs_spec(agent.obs_space).items():
        if key not in batch.obs:
            found.append(f"observation {key!r} is missing, there are {sorted(batch.obs)}")
        elif (shape := tuple(batch.obs[key].shape[2:])) != spec.shape:
            found.append(f"observation {key!r} has shape {shape} in them and {spec.shape} in the environment")
    width = batch.actions.shape[-1]
    if width != agent.action_spec.dim:
        found.append(f"actions have width {width} in them and {agent.action_spec.dim} in the environment")
    return found


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value


def save_batches(batches: Sequence[Batch], path: Path) -> None:
    """Writes batches to a safetensors file, with tensors named `{batch index}/{field}`."""
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
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    learning_rate: float,
    l2_coeff: float,
    device: torch.device,
) -> torch.optim.AdamW:
    """AdamW with weight decay `l2_coeff`; fused, so that a skipped step on a GPU needs no synchronization.

    Args:
        parameters: parameters, or groups of them with settings of their own, see `amago.finetuning`.
    """
    trained: list[Any] = list(parameters)
    if not any(isinstance(each, dict) for each in trained):
        trained = list(dict.fromkeys(trained))  # subclasses may list a network that the agent already lists
        if any(fsdp.is_sharded(parameter) for parameter in trained):
            # Neither implementation takes sharded and whole parameters together.
            return torch.optim.AdamW(
                trained, lr=learning_rate, weight_decay=l2_coeff, fused=False, foreach=False
            )
    fused = device.type in ("cpu", "cuda")
    return torch.optim.AdamW(trained, lr=learning_rate, weight_decay=l2_coeff, fused=fused)
