"""Example calls of every operation on random tensors, for tests and benchmarks of amago.kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amago import kernels
from amago.kernels import Bins, RingCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One call of an operation.

    Args:
        operation: its name, as in `available_backends()`.
        name: of this call, for messages.
        call: takes the tensors and `backend` by name.
        tensors: all floating-point inputs by name.
        gradients: names of those that gradients flow into.
        terms: magnitude of the terms whose differences some gradients are: a gradient cannot be more exact than
            the rounding of such a term.
    """

    operation: str
    name: str
    call: Callable[..., Any]
    tensors: dict[str, Tensor]
    gradients: tuple[str, ...]
    terms: float = 0.0

    def run(self, backend: str | None = None) -> Any:
        """The result of the call."""
        return self.call(**self.tensors, backend=backend)

    def mapped(self, change: Callable[[Tensor], Tensor], suffix: str = "") -> Example:
        """The same call of changed tensors."""
        tensors = {name: change(x) for name, x in self.tensors.items()}
        return dataclasses.replace(self, name=self.name + suffix, tensors=tensors)

    def double(self) -> Example:
        """The same call of the same numbers, in float64."""
        return self.mapped(torch.Tensor.double)


def strided(x: Tensor) -> Tensor:
    """The same values with a stride of 2 and an odd offset, NaN in between."""
    if x.dim() == 0:
        return x
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"))[..., 1::2]
    return wide.copy_(x)


def repeated(x: Tensor) -> Tensor:
    """The first row's values for all rows, with stride 0."""
    return x[:1].expand_as(x) if x.dim() and x.shape[0] else x


class RandomTensors:
    """Random tensors of one device and dtype from one seed."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self.device, self.dtype = torch.device(device), dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """Normally distributed, with that standard deviation."""
        x = torch.randn(shape, generator=self._generator, device=self.device)
        return (x * scale if scale != 1.0 else x).to(dtype or self.dtype)

    def integers(self, high: int, *shape: int) -> Tensor:
        """int64 below `high`."""
        return torch.randint(high, shape, generator=self._generator, device=self.device)


def two_hot(
    operation: str = "two_hot_cross_entropy",
    rows: Sequence[int] = (2, 5, 4, 3),
    bins: Bins | int = 33,
    *,
    mask: bool = False,
    weight: bool = False,
    size: float = 3.0,
    targets: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: Any,
) -> Example:
    """A call of a two-hot loss, or of `two_hot_mean`.

    Args:
        rows: leading axes of the logits; the last but one is that of the critics, which share targets.
        bins: the support, or how many bins a symlog one of -1e3 to 1e5 has.
        mask, weight: whether the call has them.
        size: standard deviation of the logits.
        targets: that the rows take in turn; by default random ones, some beyond a short support.
        options: further ones of the loss.
    """
    draw = RandomTensors(device, dtype, seed)
    support = bins if isinstance(bins, Bins) else Bins(-1e3, 1e5, bins)
    logits = draw.normal(*rows, support.n, scale=size)
    if operation == "two_hot_mean":
        return _mean(logits, support)
    loss = getattr(kernels, operation)
    shared = [*rows[:-2], 1, *rows[-1:]] if len(rows) > 1 else list(rows)
    target = draw.normal(*shared, dtype=torch.float32, scale=60.0)
    if targets is not None:
        cycle = torch.tensor(list(targets), device=target.device)
        target = cycle[torch.arange(target.numel(), device=target.device) % len(targets)].view(shared)
    tensors = {"logits": logits, "target": target}
    if weight:
        tensors["weight"] = draw.normal(*shared, dtype=torch.float32).abs()
    if mask:
        options["mask"] = draw.integers(3, *shared) > 0

    def call(logits: Tensor, target: Tensor, weight: Tensor | None = None, *, backend: str | None) -> Any:
        return loss(logits, target, support, weight=weight, backend=backend, **options)

    return Example(
        operation=operation, name=f"{support.n} bins", call=call, tensors=tensors, gradients=("logits",)
    )


def _mean(logits: Tensor, support: Bins) -> Example:
    """A call of `two_hot_mean`."""

    def mean(logits: Tensor, backend: str | None) -> Tensor:
        return kernels.two_hot_mean(logits, support, backend=backend)

    # Gradients are differences of support points, in units of returns.
    largest = mean(logits.double(), "eager").abs().max().item() if logits.numel() else 0.0
    points = max(abs(support.start), abs(support.stop))
    return Example(
        operation="two_hot_mean",
        name="mean",
        call=mean,
        tensors={"logits": logits},
        gradients=("logits",),
        terms=0.25 * points * (1.0 + largest if support.symlog else 1.0),
    )


def attention(
    rows: int = 2,
    length: int = 9,
    heads: int = 2,
    dim: int = 16,
    *,
    ragged: bool = False,
    size: float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: Any,
) -> Example:
    """A call of `attention`, or of `flex_attention` if the options hold a `score_mod` or `mask_mod`.

    Args:
        ragged: rows of lengths from 0 to `length`.
        size: standard deviation of q, k and v, which lie in one tensor (B, L, 3, H, D).
        options: those of the operation.
    """
    draw = RandomTensors(device, dtype, seed)
    packed = draw.normal(rows, length, 3, heads, dim, scale=size)
    name = f"{rows}x{length}x{heads}x{dim}"
    if ragged:
        options["lengths"] = draw.integers(length + 1, rows)
        options["lengths"][:2] = torch.tensor([length, 0], device=draw.device)[:rows]
    flex = "score_mod" in options or "mask_mod" in options
    function: Any = kernels.flex_attention if flex else kernels.attention

    def call(q: Tensor, k: Tensor, v: Tensor, *, backend: str | None) -> Any:
        return function(q, k, v, backend=backend, **options)

    # The gradients of q and k are differences of the upstream gradient's products with values.
    largest = packed.abs().max().item() if packed.numel() else 0.0
    return Example(
        operation="flex_attention" if flex else "attention",
        name=name,
        call=call,
        tensors=dict(zip("qkv", packed.unbind(2), strict=True)),
        gradients=("q", "k", "v"),
        terms=4.0 * largest**2 * abs(options.get("scale", dim**-0.5)),
    )


def attention_step(
    rows: int = 3,
    window: int = 5,
    heads: int = 2,
    dim: int = 16,
    *,
    in_place: bool = False,
    full: bool = False,
    size: float = 1.0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: Any,
) -> Example:
    """A call of `attention_step`, or of `flex_attention_step`, against a ring with rows at all stages of filling.

    Its slots beyond a row's steps hold the numbers of an episode before. The call works on a copy of the ring
    and returns that too; with `in_place` it works on the ring itself and returns what the step returns.

    Args:
        window: slots of the ring (the operation's option of that name is `options["seen"]` here).
        full: every row has filled the ring.
    """
    draw = RandomTensors(device, dtype, seed)
    packed = draw.normal(rows, 1, 3, heads, dim, scale=size)
    q, k, v = packed.unbind(2)
    ring = draw.normal(2, rows, window, heads, dim, scale=size)
    lengths = draw.integers(2 * window + 1, rows)
    lengths[:2] = torch.tensor([0, window], device=draw.device)[:rows]
    if full:
        lengths += window
    if "seen" in options:
        options["window"] = options.pop("seen")
    flex = "score_mod" in options or "mask_mod" in options
    function: Any = kernels.flex_attention_step if flex else kernels.attention_step

    def call(
        q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, *, backend: str | None
    ) -> tuple[Tensor, ...]:
        if in_place:
            return (function(q, k, v, RingCache(keys, values, lengths), backend=backend, **options),)
        cache = RingCache(keys.clone(), values.clone(), lengths)
        return function(q, k, v, cache, backend=backend, **options), cache.keys, cache.values

    return Example(
        operation="flex_attention_step" if flex else "attention_step",
        name=f"{rows}x{window}x{heads}x{dim}",
        call=call,
        tensors={"q": q, "k": k, "v": v, "keys": ring[0], "values": ring[1]},
        gradients=("q", "k", "v"),
        terms=4.0 * packed.abs().max().item() ** 2 * abs(options.get("scale", dim**-0.5)),
    )


def selective_scan(
    rows: int = 2,
    channels: int = 3,
    states: int = 4,
    length: int = 19,
    *,
    left_out: Sequence[str] = (),
    initial: bool = False,
    last_state: bool = False,
    delta_softplus: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Example:
    """A call of `selective_scan`; A, D and delta_bias are float32, as they are in Mamba, or float64.

    Args:
        left_out: those of D, z and delta_bias that the call has not.
        initial: give an initial state.
        last_state: return the last state too.
    """
    tensors = _scan_tensors(RandomTensors(device, dtype, seed), rows, channels, states, (length,))
    if initial:
        tensors["initial_state"] = RandomTensors(device, torch.float32, seed + 1).normal(
            rows, channels, states
        )
    tensors = {name: x for name, x in tensors.items() if name not in left_out}

    def call(*, backend: str | None, **tensors: Tensor) -> Any:
        return kernels.selective_scan(
            **tensors,
            delta_softplus=delta_softplus,
            return_last_state=last_state,  # type: ignore[call-overload]
            backend=backend,
        )

    name = f"{rows}x{channels}x{states}x{length}"
    return Example(
        operation="selective_scan", name=name, call=call, tensors=tensors, gradients=tuple(tensors), terms=1.0
    )


def selective_scan_step(
    rows: int = 2,
    channels: int = 3,
    states: int = 4,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Example:
    """A call of `selective_scan_step` with a state in float32."""
    draw = RandomTensors(device, dtype, seed)
    tensors = _scan_tensors(draw, rows, channels, states, ())
    tensors["state"] = draw.normal(rows, channels, states, dtype=torch.float32)

    def call(*, backend: str | None, **tensors: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.selective_scan_step(**tensors, delta_softplus=True, backend=backend)

    name = f"{rows}x{channels}x{states}"
    return Example(
        operation="selective_scan_step",
        name=name,
        call=call,
        tensors=tensors,
        gradients=tuple(tensors),
        terms=1.0,
    )


def _scan_tensors(
    draw: RandomTensors, rows: int, channels: int, states: int, time: tuple[int, ...]
) -> dict[str, Tensor]:
    """Inputs of the scan, or of its step with no axis of time."""
    return {
        "u": draw.normal(rows, channels, *time),
        "delta": draw.normal(rows, channels, *time),
        "A": -draw.normal(channels, states, dtype=torch.float32).exp(),
        "B": draw.normal(rows, states, *time),
        "C": draw.normal(rows, states, *time),
        "D": draw.normal(channels, dtype=torch.float32),
        "z": draw.normal(rows, channels, *time),
        "delta_bias": draw.normal(channels, dtype=torch.float32),
    }


def linear(
    rows: int = 7,
    inputs: int = 33,
    outputs: int = 65,
    *,
    leaky: float | None = 0.01,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Example:
    """A call of `linear`."""
    draw = RandomTensors(device, dtype, seed)
    tensors = {
        "x": draw.normal(rows, inputs),
        "weight": draw.normal(outputs, inputs, scale=inputs**-0.5),
        "bias": draw.normal(outputs),
    }

    def call(*, backend: str | None, **tensors: Tensor) -> Tensor:
        return kernels.linear(**tensors, leaky=leaky, backend=backend)

    name = f"{rows}x{inputs}x{outputs}"
    return Example(operation="linear", name=name, call=call, tensors=tensors, gradients=tuple(tensors))
