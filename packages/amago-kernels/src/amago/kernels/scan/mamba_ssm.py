"""The CUDA and Triton kernels of the package mamba_ssm (Gu and Dao 2023), if it is installed.

It is imported by the first call that can use it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util

import torch
from torch import Tensor

from amago.kernels.operators import needs_gradient
from amago.kernels.scan.inputs import ScanInputs

INSTALL = "pip install mamba-ssm --no-build-isolation"
_MAX_STATES = 256
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def _missing(try_import: bool) -> str | None:
    """The reason why the package cannot be used, None if it can; imports it only if told to."""
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
    """The requirement of the backend."""

    def missing(self) -> list[str]:
        """Reasons why the package cannot be used here; nothing is imported."""
        reason = _missing(False)
        return [] if reason is None else [reason]

    def failures(self) -> list[str]:
        """The same reasons: `unsupported` imports what a call on a CUDA device needs."""
        return self.missing()


def _unsupported(inputs: ScanInputs) -> list[str]:
    """Reasons why neither of its kernels can run a call."""
    u, A = inputs.u, inputs.A
    reasons = []
    if not u.is_cuda:
        reasons.append(f"its kernels need a CUDA device and the tensors are on {u.device}")
    if u.dtype not in _DTYPES or A.dtype != torch.float32:
        reasons.append(f"u must be float32, float16 or bfloat16 and A float32, got {u.dtype} and {A.dtype}")
    if any(x is not None and x.dtype != u.dtype for x in (inputs.delta, inputs.B, inputs.C, inputs.z)):
        reasons.append("u, delta, z, B and C must have one dtype")
    if A.shape[1] > _MAX_STATES:
        reasons.append(f"it takes at most {_MAX_STATES} states per channel, got {A.shape[1]}")
    if (missing := _missing(u.is_cuda)) is not None:
        reasons.append(missing)
    return reasons


def scan_unsupported(inputs: ScanInputs, return_last_state: bool) -> list[str]:
    """Reasons why it cannot scan a sequence."""
    reasons = _unsupported(inputs)
    if inputs.state is not None:
        reasons.append("it has no initial_state")
    if return_last_state and needs_gradient(*inputs.tensors):
        reasons.append("it has no gradient of the last state")
    return reasons


def step_unsupported(inputs: ScanInputs) -> list[str]:
    """Reasons why it cannot run a step."""
    reasons = _unsupported(inputs)
    if needs_gradient(*inputs.tensors):
        reasons.append("its step has no gradient")
    return reasons


def _float(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float()


def scan(inputs: ScanInputs, return_last_state: bool) -> tuple[Tensor, Tensor | None]:
    """mamba_ssm's fused scan, forward and backward."""
    interface = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    result = interface.selective_scan_fn(
        inputs.u,
        inputs.delta,
        inputs.A,
        inputs.B,
        inputs.C,
        _float(inputs.D),
        z=inputs.z,
        delta_bias=_float(inputs.delta_bias),
        delta_softplus=inputs.delta_softplus,
        return_last_state=return_last_state,
    )
    y, last = result if return_last_state else (result, None)
    return y, last


def step(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """mamba_ssm's fused step, on a copy of the state, which it changes in place."""
    kernel = importlib.import_module("mamba_ssm.ops.triton.selective_state_update")
    assert inputs.state is not None
    state = inputs.state.clone(memory_format=torch.contiguous_format)
    y: Tensor = kernel.selective_state_update(
        state,
        inputs.u,
        inputs.delta,
        inputs.A,
        inputs.B,
        inputs.C,
        _float(inputs.D),
        z=inputs.z,
        dt_bias=_float(inputs.delta_bias),
        dt_softplus=inputs.delta_softplus,
    )
    return y, state
