"""Backend selection: the registry of implementations and the order in which "auto" tries them.

An operation is a public function with several implementations ("backends"). `backend=None` or "auto" takes the
first backend of `ORDERS` that supports the call. A backend requested by name runs or raises with the reasons why
it cannot: nothing falls back silently from an explicit request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch


class Backend(str, Enum):
    """Names of the implementations; "eager" is the reference that the others are tested against."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLEX = "flex"
    TORCH = "torch"
    ONEDNN = "onednn"
    CPP = "cpp"
    TRITON = "triton"
    CUDA = "cuda"


_CPP, _TRITON, _CUDA = Backend.CPP, Backend.TRITON, Backend.CUDA
_TORCH, _SDPA, _FLEX, _EAGER = Backend.TORCH, Backend.SDPA, Backend.FLEX, Backend.EAGER

# The order in which "auto" tries the backends of an operation, per device type; other devices use the CPU's order.
# - CUDA: our Triton kernels come first where the operation is memory-bound and torch has no fused equal: two-hot
#   losses and mean, scans, steps, and attention with a window, biased sinks, a clip or lengths (the row
#   "masked_attention"). Plain causal attention runs on torch's fused kernels first. Eager is always last.
# - CUDA C++ follows Triton, for it is compiled by nvcc at the first call, which takes half a minute.
# - CPU: C++, then torch, then eager.
_LOSS: dict[str, tuple[Backend, ...]] = {"cpu": (_CPP, _EAGER), "cuda": (_TRITON, _CUDA, _EAGER)}
_SCAN: dict[str, tuple[Backend, ...]] = {"cpu": (_CPP, _TORCH, _EAGER), "cuda": (_TRITON, _TORCH, _EAGER)}
ORDERS: dict[str, dict[str, tuple[Backend, ...]]] = {
    "two_hot_cross_entropy": _LOSS,
    "hl_gauss_cross_entropy": _LOSS,
    "two_hot_mean": _LOSS,
    "attention": {"cpu": (_SDPA, _EAGER), "cuda": (_SDPA, _TRITON, _EAGER)},
    "masked_attention": {"cpu": (_SDPA, _EAGER), "cuda": (_TRITON, _SDPA, _EAGER)},
    "attention_step": {"cpu": (_CPP, _SDPA, _EAGER), "cuda": (_TRITON, _CUDA, _SDPA, _EAGER)},
    "flex_attention": {"cpu": (_SDPA, _EAGER), "cuda": (_FLEX, _SDPA, _EAGER)},
    "flex_attention_step": {"cpu": (_SDPA, _EAGER), "cuda": (_SDPA, _EAGER)},
    "selective_scan": _SCAN,
    "selective_scan_step": _SCAN,
    "linear": {"cpu": (Backend.ONEDNN, _EAGER), "cuda": (_EAGER,)},
}


class Unsupported(RuntimeError):
    """No backend, or not the requested one, can run a call; the message gives the reasons."""


def _no_reasons(*_: object) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Implementation:
    """One backend of one operation.

    Args:
        backend: its name.
        run: the implementation; all implementations of an operation take the same, checked arguments.
        unsupported: given the arguments of a call, the reasons why this backend cannot run it; empty if it can.
        missing: the reasons why no call can run on this machine; empty if calls can. It takes whether to build
            native code now, if that is needed; otherwise the reasons are those known without building.
    """

    backend: Backend
    run: Callable[..., Any]
    unsupported: Callable[..., list[str]] = _no_reasons
    missing: Callable[[bool], list[str]] = _no_reasons


# The backend set by `use_backend`: a plain global, which torch.compile can read and guard on.
_preferred: Backend | None = None
_operations: dict[str, dict[str, Implementation]] = {}


def register(operation: str, implementations: Sequence[Implementation]) -> None:
    """Registers the implementations of an operation, replacing earlier ones."""
    _operations[operation] = {impl.backend.value: impl for impl in implementations}


def operations() -> dict[str, list[Implementation]]:
    """The implementations of every operation, in the order of registration."""
    return {name: list(impls.values()) for name, impls in _operations.items()}


def available_backends() -> dict[str, list[str]]:
    """The backends of every operation that can run on this machine.

    Native code counts when it is built, or when everything needed to build it is here.
    `python -m amago.kernels.doctor` says why the others cannot run, and in which order "auto" tries them.
    """
    return {
        name: [backend for backend, impl in impls.items() if not impl.missing(False)]
        for name, impls in _operations.items()
    }


@contextmanager
def use_backend(backend: str | Backend) -> Iterator[None]:
    """Sets the backend of calls that name none themselves; "auto" restores the automatic choice.

    It holds for the whole process, threads included.
    """
    global _preferred
    before, _preferred = _preferred, _parse(backend)
    try:
        yield
    finally:
        _preferred = before


def _parse(backend: str | Backend | None) -> Backend | None:
    """The backend of that name; None for None and "auto"."""
    if backend is None or backend == "auto":
        return None
    try:
        return Backend(backend)
    except ValueError:
        names = ", ".join(b.value for b in Backend)
        raise ValueError(f"backend must be 'auto' or one of {names}, got {backend!r}") from None


def requested(backend: str | Backend | None) -> Backend | None:
    """The backend requested by a call's own argument or by `use_backend`; None for the automatic choice."""
    return _parse(backend) or _preferred


def _missing(operation: str, backend: str) -> list[str]:
    """`Implementation.missing`, with building; torch.compile takes the result as a constant."""
    return _operations[operation][backend].missing(True)


# What torch.compiler.assume_constant_result does, but for importing the compiler, which takes more than a second.
setattr(_missing, "_dynamo_marked_constant", True)  # noqa: B010


def order(operation: str, device: torch.device) -> tuple[Backend, ...]:
    """The order in which "auto" tries the backends of an operation on a device.

    Args:
        operation: a key of `ORDERS`.
        device: device of the call's tensors.
    """
    by_device = ORDERS[operation]
    return by_device.get(device.type, by_device["cpu"])


def choose(
    operation: str,
    backend: str | Backend | None,
    device: torch.device,
    *arguments: Any,
    order_of: str | None = None,
) -> Implementation:
    """The implementation that runs `operation` on these arguments.

    Args:
        operation: a registered operation.
        backend: the requested backend; None or "auto" for the first of `ORDERS` that supports the call.
        device: device of the call's tensors.
        arguments: arguments of the call, as passed to the implementations.
        order_of: key of `ORDERS`; the operation's name by default.

    Raises:
        ValueError: if there is no backend of the requested name.
        Unsupported: (a RuntimeError) if no backend, or not the requested one, can run the call.
    """
    wanted = requested(backend)
    implementations = _operations[operation]
    candidates = order(order_of or operation, device) if wanted is None else (wanted,)
    refusals = []
    for candidate in candidates:
        impl = implementations.get(candidate.value)
        if impl is None:
            continue
        reasons = impl.unsupported(*arguments) or _missing(operation, candidate.value)
        if not reasons:
            return impl
        refusals.append(f"{candidate.value}: {'; '.join(reasons)}")
    if not refusals:
        names = ", ".join(implementations)
        raise Unsupported(
            f"{operation} has no backend {wanted.value if wanted else 'auto'!r}; it has {names}"
        )
    raise Unsupported(f"no backend can run this call of {operation}: " + " | ".join(refusals))
