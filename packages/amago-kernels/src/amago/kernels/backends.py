"""Which implementation of an operation runs, and why another one cannot.

An operation is a public function with several implementations ("backends"). `backend=None` or "auto" takes
the first one that supports the call; a backend that is asked for by name runs or raises with the reasons why
not: nothing falls back silently from an explicit request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol


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
        run: the implementation itself; takes what the operation takes.
        unsupported: given the same arguments, the reasons why it cannot run them; none, and always none by
            default, if it can.
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


def register(operation: str, implementations: Sequence[Implementation]) -> None:
    """Enters the implementations of an operation in the order in which "auto" tries them."""
    _operations[operation] = list(implementations)


def operations() -> dict[str, list[Implementation]]:
    """The implementations of every operation, in the order in which "auto" tries them."""
    return {name: list(impls) for name, impls in _operations.items()}


def available_backends() -> dict[str, list[str]]:
    """The backends of every operation that can run on this machine, in the order in which "auto" tries them.

    Native code counts when it is built, or when all is here that building it takes. Why the others cannot
    run says `python -m amago.kernels.doctor`.
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


def choose(operation: str, backend: str | Backend | None, *args: Any, **kwargs: Any) -> Implementation:
    """The implementation that runs `operation` on these arguments.

    Raises:
        ValueError: if the backend that was asked for does not exist.
        Unsupported: (a RuntimeError) if it cannot run the call; the message gives its reasons.
    """
    wanted = requested(backend)
    refusals = []
    for impl in _operations[operation]:
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
