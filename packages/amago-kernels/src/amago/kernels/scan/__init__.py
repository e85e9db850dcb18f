"""The selective state-space scan of Mamba over whole sequences, and its single step (Gu and Dao 2023).

Shapes: B rows, d channels, n states per channel, L timesteps.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from amago.kernels import triton_runtime
from amago.kernels.backends import Backend, Implementation, choose, register
from amago.kernels.native import SELECTIVE_SCAN
from amago.kernels.operators import require_tensors
from amago.kernels.precision import full_precision
from amago.kernels.scan import chunked, gpu, native, reference
from amago.kernels.scan.inputs import ScanInputs

__all__ = ["selective_scan", "selective_scan_step"]


register(
    "selective_scan",
    [
        Implementation(Backend.CPP, native.scan, native.unsupported, SELECTIVE_SCAN.missing),
        Implementation(Backend.TRITON, gpu.scan, gpu.unsupported, triton_runtime.missing),
        Implementation(Backend.TORCH, chunked.scan),
        Implementation(Backend.EAGER, reference.scan),
    ],
)
register(
    "selective_scan_step",
    [
        Implementation(Backend.CPP, native.step, native.step_unsupported, SELECTIVE_SCAN.missing),
        Implementation(Backend.TRITON, gpu.step, gpu.unsupported, triton_runtime.missing),
        Implementation(Backend.TORCH, chunked.step, chunked.step_unsupported),
        Implementation(Backend.EAGER, reference.step),
    ],
)


_OPTIONAL = ("D", "z", "delta_bias", "initial_state")


def _check(u: Tensor, A: Tensor, time: tuple[int, ...], tensors: dict[str, Tensor | None]) -> None:
    """Raises ValueError unless all tensors fit u and A; `time` is (L,) for a sequence and () for a step."""
    rows, channels = u.shape[:2]
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] < 1:
        raise ValueError(
            f"A must be (channels, states) with {channels} channels as u has, got {tuple(A.shape)}"
        )
    n, device = A.shape[1], u.device
    shapes = {
        "u": u.shape,
        "delta": u.shape,
        "z": u.shape,
        "A": A.shape,
        "B": (rows, n, *time),
        "C": (rows, n, *time),
        "D": (channels,),
        "delta_bias": (channels,),
        "state": (rows, channels, n),
        "initial_state": (rows, channels, n),
    }
    for name, tensor in (("u", u), ("A", A), *tensors.items()):
        if tensor is None and name in _OPTIONAL:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.shape != shapes[name]:
            fits = f"to fit u {tuple(u.shape)} and A {tuple(A.shape)}"
            raise ValueError(f"{name} must be {tuple(shapes[name])} {fits}, got {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be real floating-point numbers, got {tensor.dtype}")
        if tensor.device != device:
            raise ValueError(f"{name} must be on {device} like u, got {tensor.device}")


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_softplus: bool = ...,
    *,
    initial_state: Tensor | None = ...,
    return_last_state: Literal[False] = ...,
    backend: str | Backend | None = ...,
) -> Tensor: ...


@overload
def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = ...,
    z: Tensor | None = ...,
    delta_bias: Tensor | None = ...,
    delta_softplus: bool = ...,
    *,
    initial_state: Tensor | None = ...,
    return_last_state: Literal[True],
    backend: str | Backend | None = ...,
) -> tuple[Tensor, Tensor]: ...


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    initial_state: Tensor | None = None,
    return_last_state: bool = False,
    backend: str | Backend | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The recurrence h_t = exp(delta_t A) h_{t-1} + delta_t u_t B_t, y_t = <C_t, h_t> + D u_t, times silu(z_t).

    States are float32 (float64 if any input is), whatever the dtypes of the inputs.

    Args:
        u: inputs (B, d, L), L at least 1.
        delta: step sizes (B, d, L), before `delta_bias` and `delta_softplus`.
        A: rates (d, n), negative for a memory that fades.
        B: input projection (B, n, L).
        C: output projection (B, n, L).
        D: weight of the skip connection from the input to the output (d,).
        z: gate (B, d, L).
        delta_bias: added to `delta` (d,).
        delta_softplus: softplus makes `delta` positive.
        initial_state: h_0 (B, d, n), zeros by default.
        return_last_state: also return h_L (B, d, n).
        backend: "eager", "torch", "cpp", "triton", or None / "auto" for the first that can run the
            call: "cpp" on a CPU, "triton" on CUDA.

    Returns:
        y (B, d, L) in the dtype of u; with `return_last_state` a tuple of it and the last state. Both have
        gradients to every input.

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
        TypeError: for arguments that are not tensors.
        RuntimeError: if the requested backend cannot run the call.
    """
    require_tensors(u=u, A=A)
    if u.dim() != 3 or u.shape[2] < 1:
        raise ValueError(
            f"u must be (batch, channels, length) with a length of at least 1, got {tuple(u.shape)}"
        )
    tensors = {
        "delta": delta,
        "B": B,
        "C": C,
        "D": D,
        "z": z,
        "delta_bias": delta_bias,
        "initial_state": initial_state,
    }
    _check(u, A, (u.shape[2],), tensors)
    inputs = ScanInputs(
        u=u,
        delta=delta,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        state=initial_state,
        delta_softplus=delta_softplus,
    )
    run = choose("selective_scan", backend, u.device, inputs, return_last_state).run
    with full_precision(u.device):
        y, last = run(inputs, return_last_state)
    return (y, last) if return_last_state else y


def selective_scan_step(
    state: Tensor,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    *,
    backend: str | Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """One timestep of `selective_scan` for every row.

    The given state is not changed; the next one is returned.

    Args:
        state: h_{t-1} (B, d, n), float32 or float64.
        u, delta, z: (B, d).
        A: (d, n).
        B, C: (B, n).
        D, delta_bias: (d,).
        delta_softplus: softplus makes `delta` positive.
        backend: "eager", "triton", "torch" and "cpp" (these two without gradients), or None / "auto" for the
            first that can run it.

    Returns:
        y_t (B, d) in the dtype of u, and h_t (B, d, n).

    Raises:
        ValueError: for shapes, dtypes or devices that do not fit.
        TypeError: for arguments that are not tensors.
        RuntimeError: if the requested backend cannot run the call.
    """
    require_tensors(u=u, A=A)
    if u.dim() != 2:
        raise ValueError(f"u must be (batch, channels) in a single step, got {tuple(u.shape)}")
    tensors = {"state": state, "delta": delta, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    _check(u, A, (), tensors)
    if state.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"state must be float32 or float64, got {state.dtype}")
    inputs = ScanInputs(
        u=u,
        delta=delta,
        A=A,
        B=B,
        C=C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        state=state,
        delta_softplus=delta_softplus,
    )
    run = choose("selective_scan_step", backend, u.device, inputs).run
    with full_precision(u.device):
        y, state = run(inputs)
    return y, state
