"""The CUDA and Triton kernels of the package mamba_ssm (Gu and Dao 2023), where it is installed.

It is imported when a call could use it, never before.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from amago.kernels.precision import needs_gradient
from amago.kernels.scan.inputs import Inputs

INSTALL = "pip install mamba-ssm --no-build-isolation"
_MAX_STATES = 256
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def _missing(try_import: bool) -> str | None:
    """Why the package cannot be used, None if it can; without an import only whether it is there."""
    if importlib.util.find_spec("mamba_ssm") is None:
        return f"mamba_ssm is not installed (it needs a CUDA device): {INSTALL}"
    if not try_import:
        return None
    try:
        importlib.import_module("mamba_ssm.ops.selective_scan_interface")
        importlib.import_module("mamba_ssm.ops.triton.selective_state_update")
    except (ImportError, OSError, RuntimeError) as error:
        return f"mamba_ssm cannot be imported ({error}): build it for this torch with {INSTALL}"
    return None


class MambaSsm:
    """What the backend needs of the machine."""

    def missing(self) -> list[str]:
        """Why the package cannot be used here; nothing is imported."""
        reason = _missing(False)
        return [] if reason is None else [reason]

    def failures(self) -> list[str]:
        """The same: `unsupported` imports what a call on a CUDA device needs."""
        return self.missing()


def unsupported(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    z: Tensor | None = None,
    **_: object,
) -> list[str]:
    """The reasons why neither of its kernels can run a call, whole sequences and steps alike."""
    reasons = []
    if not u.is_cuda:
        reasons.append(f"its kernels need a CUDA device and the tensors are on {u.device}")
    if u.dtype not in _DTYPES or A.dtype != torch.float32:
        reasons.append(f"u must be float32, float16 or bfloat16 and A float32, got {u.dtype} and {A.dtype}")
    if any(x is not None and x.dtype != u.dtype for x in (delta, B, C, z)):
        reasons.append("u, delta, z, B and C must have one dtype")
    if A.shape[1] > _MAX_STATES:
        reasons.append(f"it takes at most {_MAX_STATES} states per channel, got {A.shape[1]}")
    if (missing := _missing(u.is_cuda)) is not None:
        reasons.append(missing)
    return reasons


def scan_unsupported(
    u: Tensor, *others: Tensor, initial_state: Tensor | None, return_last_state: bool, **options: Any
) -> list[str]:
    """The reasons why it cannot scan a whole sequence."""
    reasons = unsupported(u, *others, **options)
    if initial_state is not None:
        reasons.append("it has no initial_state")
    tensors = (x for x in options.values() if isinstance(x, Tensor))
    if return_last_state and needs_gradient(u, *others, *tensors):
        reasons.append("it has no gradient of the last state")
    return reasons


def step_unsupported(state: Tensor, *others: Tensor, **options: Any) -> list[str]:
    """The reasons why it cannot take a step."""
    reasons = unsupported(*others, **options)
    tensors = (x for x in options.values() if isinstance(x, Tensor))
    if needs_gradient(state, *others, *tensors):
        reasons.append("its step has no gradient")
    return reasons


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()


def scan(
    inputs: Inputs, *, initial_state: Tensor | None, return_last_state: bool
) -> tuple[Tensor, Tensor | None]:
    """mamba_ssm's fused scan, forward and backward."""
    interface = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    result = interface.selective_scan_fn(
        u,
        delta,
        A,
        B,
        C,
        _float(D),
        z=z,
        delta_bias=_float(delta_bias),
        delta_softplus=delta_softplus,
        return_last_state=return_last_state,
    )
    y, last = result if return_last_state else (result, None)
    return y, last


def step(state: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """mamba_ssm's fused step, on a copy of the state, which it would change."""
    kernel = importlib.import_module("mamba_ssm.ops.triton.selective_state_update")
    state = state.clone(memory_format=torch.contiguous_format)
    u, delta, A, B, C, D, z, delta_bias, delta_softplus = inputs
    y: Tensor = kernel.selective_state_update(
        state,
        u,
        delta,
        A,
        B,
        C,
        _float(D),
        z=z,
        dt_bias=_float(delta_bias),
        dt_softplus=delta_softplus,
    )
    return y, state
