"""Which implementation of an operation runs, and why another one cannot.

An operation is a public function with several implementations ("backends"). `backend=None` or "auto" takes
the first one that supports the call, by speed where that was measured (`measured`) on such a device for calls of
such a size (`shape_classes`), eager last in training, and otherwise in the default order. A backend that is
asked for by name runs or raises with the reasons why not: nothing falls back silently from an explicit request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import torch

from amago.kernels import measured, shape_classes


class Backend(str, Enum):
    """The implementations by name; "eager" is the specification that the others are compared with."""

    EAGER = "eager"
    SDPA = "sdpa"
    FLEX = "flex"
    TORCH = "torch"
    ONEDNN = "onednn"
    MAMBA_SSM = "mamba_ssm"
    CPP = "cpp"
    TRITON = "triton"
    CUDA = "cuda"


class Unsupported(RuntimeError):
    """No backend, or not the one that was asked for, can run a call; the message gives the reasons."""


class Requirement(Protocol):
    """What a backend needs of this machine, whatever the call; native code is one."""

    def missing(self) -> list[str]:
        """Why it cannot run here, as far as can be told at once; nothing if it seems that it can."""

    def failures(self) -> list[str]:
        """Why it cannot run here, after all that getting it ready takes (a build, the first time)."""


def _no_reasons(*_: object, **__: object) -> list[str]:
    """Of an implementation that runs every call."""
    return []


@dataclass(frozen=True, slots=True)
class Implementation:
    """One backend of one operation.

    Args:
        backend: its name.
        run: the implementation itself; the operation hands all of them the same, checked.
        unsupported: given the arguments of the call, the reasons why it cannot run them; none, and always none
            by default, if it can.
        needs: what it needs of the machine; got ready by the first call that it supports.
    """

    backend: Backend
    run: Callable[..., Any]
    unsupported: Callable[..., list[str]] = _no_reasons
    needs: Requirement | None = None

    def missing(self) -> list[str]:
        """Why it cannot run any call on this machine, as far as can be told without building."""
        return [] if self.needs is None else self.needs.missing()


# What `use_backend` asks for: a plain global, which torch.compile can read and watch for changes.
_preferred: Backend | None = None
_operations: dict[str, list[Implementation]] = {}
# Orders that were found before, as positions in `_operations`, by operation, device and class of sizes.
_orders: dict[tuple[str, torch.device, str], tuple[int, ...]] = {}
# Where nobody has measured them, our own kernels for GPUs come after what torch has.
_LAST_UNLESS_MEASURED = (Backend.TRITON, Backend.CUDA)


def register(operation: str, implementations: Sequence[Implementation]) -> None:
    """Enters the implementations of an operation, in the order in which "auto" tries them on a CPU by default."""
    _operations[operation] = list(implementations)
    _orders.clear()


def operations() -> dict[str, list[Implementation]]:
    """The implementations of every operation, in the order in which they were entered."""
    return {name: list(impls) for name, impls in _operations.items()}


def available_backends() -> dict[str, list[str]]:
    """The backends of every operation that can run on this machine.

    Native code counts when it is built, or when all is here that building it takes. Why the others cannot
    run, and in which order "auto" tries them, says `python -m amago.kernels.doctor`.
    """
    return {
        name: [impl.backend.value for impl in impls if not impl.missing()]
        for name, impls in _operations.items()
    }


@contextmanager
def use_backend(backend: str | Backend) -> Iterator[None]:
    """Within the context, calls that name no backend of their own use this one ("auto" to choose again).

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
    """The backend that a call asks for, by its own argument or by `use_backend`; None if it asks for none."""
    return _parse(backend) or _preferred


def _failures(needs: Requirement) -> list[str]:
    """`needs.failures()`; torch.compile takes the answer as it is and does not trace how it was found."""
    return needs.failures()


# What torch.compiler.assume_constant_result does, but for importing the compiler, which takes more than a second.
setattr(_failures, "_dynamo_marked_constant", True)  # noqa: B010


def default_order(operation: str, device: torch.device) -> list[Implementation]:
    """The order in which "auto" tries backends whose speed on such a device nobody has measured."""
    if device.type == "cpu":
        return list(_operations[operation])
    return sorted(_operations[operation], key=lambda impl: impl.backend in _LAST_UNLESS_MEASURED)


def order(
    operation: str, device: torch.device, shape: str
) -> tuple[list[Implementation], measured.Row | None]:
    """The order in which "auto" tries backends, and the measurements that it comes from; None by default.

    Args:
        shape: one of `shape_classes.NAMES[operation]`.
    """
    default = default_order(operation, device)
    row = measured.known().get((shape_classes.device_class(device), operation, shape))
    if row is None:
        return default, None
    # Those that were not measured keep their order, behind the others.
    ranks = {name: rank for rank, name in enumerate(row.microseconds)}
    return sorted(default, key=lambda impl: ranks.get(impl.backend.value, len(ranks))), row


def _positions(operation: str, device: torch.device, shape: str) -> tuple[int, ...]:
    """`order` as positions in the operation's list; torch.compile takes the answer as it is."""
    key = (operation, device, shape)
    found = _orders.get(key)
    if found is None:
        implementations = _operations[operation]
        found = tuple(implementations.index(impl) for impl in order(operation, device, shape)[0])
        _orders[key] = found
    return found


setattr(_positions, "_dynamo_marked_constant", True)  # noqa: B010


def forget_orders() -> None:
    """Reads the tables of measured speed again at the next call."""
    measured.known.cache_clear()
    _orders.clear()


def choose(operation: str, backend: str | Backend | None, *args: Any, **kwargs: Any) -> Implementation:
    """The implementation that runs `operation` on these arguments.

    Raises:
        ValueError: if the backend that was asked for does not exist.
        Unsupported: (a RuntimeError) if it cannot run the call; the message gives its reasons.
    """
    wanted = requested(backend)
    implementations = _operations[operation]
    positions: Sequence[int] = range(len(implementations))
    if wanted is None:
        shape = shape_classes.FUNCTIONS[operation](*args, **kwargs)
        positions = _positions(operation, args[0].device, shape)
    refusals = []
    for position in positions:
        impl = implementations[position]
        if wanted is not None and impl.backend is not wanted:
            continue
        reasons = impl.unsupported(*args, **kwargs)
        if not reasons and impl.needs is not None:
            reasons = _failures(impl.needs)
        if not reasons:
            return impl
        refusals.append(f"{impl.backend.value}: {'; '.join(reasons)}")
    if not refusals:
        names = ", ".join(impl.backend.value for impl in _operations[operation])
        raise Unsupported(
            f"{operation} has no backend {wanted.value if wanted else 'auto'!r}; it has {names}"
        )
    raise Unsupported(f"no backend can run this call of {operation}: " + " | ".join(refusals))
