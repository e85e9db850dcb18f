"""Activation checkpointing: activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

Output = TypeVar("Output")


class _ThreadState(threading.local):
    """Whether this thread repeats a forward pass. The backward pass of a GPU runs in a thread of its own."""

    recomputing: bool = False


_state = _ThreadState()


def is_recomputing() -> bool:
    """Whether this thread repeats a forward pass, in which layers must not change their state a second time."""
    return _state.recomputing


@contextmanager
def _recomputing() -> Iterator[None]:
    _state.recomputing = True
    try:
        yield
    finally:
        _state.recomputing = False


def _contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _recomputing()


def run_checkpointed(layer: Callable[..., Output], *inputs: object) -> Output:
    """`layer(*inputs)`, whose activations are computed again in the backward pass, with the same random numbers.

    Outputs and gradients are those of a plain call. Without gradients it is one.
    """
    if not torch.is_grad_enabled():
        return layer(*inputs)
    output: Output = checkpoint(layer, *inputs, use_reentrant=False, context_fn=_contexts)
    return output
