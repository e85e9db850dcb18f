"""A call that can be made again in another precision, with other memory, by any backend, and with gradients."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One call of an operation.

    Args:
        operation: its name, as in `available_backends()`.
        name: what is particular about this call.
        call: takes the tensors and `backend` by name.
        tensors: all floating-point inputs by name.
        gradients: names of those that gradients flow into.
        terms: size of the terms whose differences some gradients are: these cannot be exact to more than the
            rounding of such a term.
    """

    operation: str
    name: str
    call: Callable[..., Any]
    tensors: dict[str, Tensor]
    gradients: tuple[str, ...]
    terms: float = 0.0

    def run(self, backend: str | None = None) -> Any:
        """What the call returns."""
        return self.call(**self.tensors, backend=backend)

    def mapped(self, change: Callable[[Tensor], Tensor], suffix: str = "") -> Example:
        """The same call of changed tensors."""
        tensors = {name: change(x) for name, x in self.tensors.items()}
        return dataclasses.replace(self, name=self.name + suffix, tensors=tensors)

    def double(self) -> Example:
        """The same call of the same numbers, in float64."""
        return self.mapped(torch.Tensor.double)


def strided(x: Tensor) -> Tensor:
    """The same numbers in other memory: each beside a NaN, from an odd offset on."""
    if x.dim() == 0:
        return x
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"))[..., 1::2]
    return wide.copy_(x)


def repeated(x: Tensor) -> Tensor:
    """The first row's numbers for all rows, in the memory of one."""
    return x[:1].expand_as(x) if x.dim() and x.shape[0] else x


class Draws:
    """Random tensors of one device and dtype from one seed."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self.device, self.dtype = torch.device(device), dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """Of a normal distribution with that standard deviation."""
        x = torch.randn(shape, generator=self._generator, device=self.device)
        return (x * scale if scale != 1.0 else x).to(dtype or self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """int64 below `high`."""
        return torch.randint(high, shape, generator=self._generator, device=self.device)
