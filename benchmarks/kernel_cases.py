"""Cases of `benchmarks.kernels`: example calls, their work, and alternative implementations in torch.

Work is the minimum that any implementation must do:

- two-hot operations, in bytes: the logits are read once in the forward pass; in the backward pass they are read
  once and their gradient is written;
- attention, in floating-point operations: 4 D for every pair of a query and an unmasked key in the forward pass,
  and 2.5 times as many in the backward pass, where the scores are recomputed;
- a step of attention, in bytes: every key and value of the ring is read;
- the scan, in bytes: every input is read and the output is written; in the backward pass every input and the
  output's gradient are read and every input's gradient is written; the step also reads and writes the state;
- linear layers, in floating-point operations: 2 K N for every row, and twice as many in the backward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tests.kernels import examples
from tests.kernels.examples import Example
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from amago.kernels import Bins

BINS = Bins(-1e5, 1e5, 128)
Way = Callable[..., Any]  # takes the tensors of an example by name
HALF, SINGLE = torch.bfloat16, torch.float32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One benchmark case.

    Args:
        name: of the case, unique within its operation.
        make: makes the example call for a device and dtype.
        shape: of the tensors, for the table.
        dtype: of the numbers.
        backward: whether gradients are computed as well.
        work: bytes, or floating-point operations, of one call.
        bound: "bandwidth" or "products", the resource that limits the work at best.
        others: implementations without this package.
        without: backends that are left out because of their memory.
    """

    name: str
    make: Callable[..., Example]
    shape: str
    dtype: torch.dtype
    backward: bool
    work: float
    bound: str
    others: Callable[[Example], dict[str, Way]]
    without: tuple[str, ...] = ()


def compiled(call: Callable[..., Any], *, of_eager: bool = True) -> Way:
    """A call of the eager backend, or any function, through torch.compile."""
    function = partial(call, backend="eager") if of_eager else call
    return torch.compile(function, dynamic=False)


def _compiled_eager(example: Example) -> dict[str, Way]:
    return {"compiled eager": compiled(example.call)}


def _none(_: Example) -> dict[str, Way]:
    return {}


def dense_labels(logits: Tensor, target: Tensor) -> Tensor:
    """The two-hot loss with dense labels: two one-hot vectors per target, weighted and added."""
    position = BINS.position(target)
    low = position.floor().clamp(max=BINS.n - 2)
    share = (position - low).unsqueeze(-1)
    labels = F.one_hot(low.long(), BINS.n) * (1 - share) + F.one_hot(low.long() + 1, BINS.n) * share
    return -(labels * F.log_softmax(logits.float(), dim=-1)).sum(dim=-1)


def _losses(operation: str, device: str) -> Iterator[Case]:
    """The critics' losses: 4 critics share the targets of 7 discounts."""
    for dtype in (SINGLE, HALF):
        batch = 24 if device == "cpu" else 592 * 4 // dtype.itemsize  # on a GPU 1 GiB of logits
        rows = (batch, 127, 4, 7)
        numbers = batch * 127 * 4 * 7 * BINS.n

        def others(example: Example) -> dict[str, Way]:
            ways = _compiled_eager(example)
            if operation == "two_hot_cross_entropy":
                ways |= {
                    "dense labels": dense_labels,
                    "compiled dense labels": compiled(dense_labels, of_eager=False),
                }
            return ways

        yield Case(
            name="critics",
            make=partial(examples.two_hot, operation, rows, BINS),
            shape=f"logits {(*rows, BINS.n)}",
            dtype=dtype,
            backward=True,
            work=3.0 * numbers * dtype.itemsize,
            bound="bandwidth",
            others=others,
        )


def visible_pairs(length: int, window: int | None, sink: int) -> int:
    """Number of visible pairs of a query and a key, causal, in one head of one row."""
    if window is None:
        return length * (length + 1) // 2
    # Plus the sinks outside the window.
    return sum(min(i, window) + 1 + min(sink, max(0, i - window)) for i in range(length))


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, kernel: Any) -> Tensor:
    """torch's fused attention by a given kernel, or by torch's choice."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if kernel is None:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    else:
        with sdpa_kernel([kernel]):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return out.transpose(1, 2)


def _flex(length: int, device: torch.device, options: dict[str, Any]) -> Way:
    """torch's flex_attention, compiled, with a precomputed block mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window, sink = options.get("window"), options.get("sink", 0)
    bias, clip = options.get("sink_bias", 0.0), options.get("logit_clip")

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        mask = i >= j
        return mask if window is None else mask & ((i - j <= window) | (j < sink))

    def changed(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = torch.where(j < sink, score + bias, score) if bias else score
        return score if clip is None else score.clamp(-clip, clip)

    score_mod = changed if bias or clip is not None else None
    block_mask = create_block_mask(seen, None, None, length, length, device=device)
    run = torch.compile(flex_attention, dynamic=False)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out: Tensor = run(q, k, v, score_mod=score_mod, block_mask=block_mask)
        return out.transpose(1, 2)

    return call


def _other_attention(length: int, options: dict[str, Any], example: Example) -> dict[str, Way]:
    """All of torch's attention functions that support the options."""
    device = example.tensors["q"].device
    ways: dict[str, Way] = {}
    window, sink = options.get("window"), options.get("sink", 0)
    if options.get("logit_clip") is None and not options.get("sink_bias"):
        mask = None
        if window is not None:
            i = torch.arange(length, device=device)
            near = i.unsqueeze(1) - i <= window
            mask = (i.unsqueeze(1) >= i) & (near | (i < sink))
        ways["SDPA"] = partial(sdpa, mask=mask, kernel=None)
        if device.type == "cuda":
            for kernel in (
                SDPBackend.FLASH_ATTENTION,
                SDPBackend.CUDNN_ATTENTION,
                SDPBackend.EFFICIENT_ATTENTION,
            ):
                ways[f"SDPA {kernel.name.split('_')[0].lower()}"] = partial(sdpa, mask=mask, kernel=kernel)
    if device.type == "cuda":  # torch has no gradient of it on a CPU
        ways["flex_attention"] = _flex(length, device, options)
    return ways


KINDS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window and sinks": {"window": 64, "sink": 4},
    "window": {"window": 64},
    "clip and biased sinks": {"sink": 4, "sink_bias": 1.0, "logit_clip": 20.0},
}


def _attention(device: str) -> Iterator[Case]:
    """On a GPU 32,768 positions in rows of several lengths, on a CPU the learner's batch."""
    heads = 8
    for dim in (64, 32) if device == "cuda" else (32,):
        for kind, options in KINDS.items():
            for length in (128, 256, 512, 1024, 2048, 4096) if device == "cuda" else (128, 512):
                rows = 32768 // length if device == "cuda" else 3072 // length
                pairs = visible_pairs(length, options.get("window"), options.get("sink", 0))
                yield Case(
                    name=f"{kind}, L {length}, D {dim}",
                    make=partial(examples.attention, rows, length, heads, dim, **options),
                    shape=f"q {(rows, length, heads, dim)}",
                    dtype=HALF if device == "cuda" else SINGLE,
                    backward=True,
                    work=3.5 * 4.0 * rows * heads * dim * pairs,
                    bound="products",
                    others=partial(_other_attention, length, options),
                    without=("flex", "eager")
                    if length > 1024
                    else ("flex",),  # flex: as torch's own beside it
                )


def _steps(device: str) -> Iterator[Case]:
    """A ring cache that fits into the processor's cache, and one that does not."""
    sizes = (
        ((12, 128, 8, 32), (64, 512, 8, 32)) if device == "cpu" else ((64, 512, 8, 64), (512, 1024, 8, 64))
    )
    for shape in sizes:
        for dtype in (SINGLE, HALF):
            rows, window, heads, dim = shape
            yield Case(
                name=f"{rows} rows, W {window}",
                make=partial(examples.attention_step, *shape, in_place=True, full=True),
                shape=f"keys {shape}",
                dtype=dtype,
                backward=False,
                work=2.0 * rows * window * heads * dim * dtype.itemsize,
                bound="bandwidth",
                others=_none,
            )


def _scans(device: str) -> Iterator[Case]:
    """Mamba's scan; torch.compile would unroll the timesteps of the eager one, which takes minutes."""
    rows, channels, states, length = (24, 128, 16, 128) if device == "cpu" else (32, 1024, 16, 1024)
    for dtype in (SINGLE, HALF):
        wide, narrow = rows * channels * length, rows * states * length
        yield Case(
            name=f"L {length}",
            make=partial(examples.selective_scan, rows, channels, states, length),
            shape=f"u {(rows, channels, length)}, {states} states",
            dtype=dtype,
            backward=True,
            # Forward u, delta, z, B, C in and y out; backward those five and y's gradient in, five gradients out.
            work=float((4 * wide + 2 * narrow) + (7 * wide + 4 * narrow)) * dtype.itemsize,
            bound="bandwidth",
            others=_none,
            without=("eager",) if device == "cuda" else (),
        )


def _scan_steps(device: str) -> Iterator[Case]:
    for rows, channels in ((12, 256), (64, 512)) if device == "cpu" else ((64, 1024), (4096, 1024)):
        yield Case(
            name=f"{rows} rows, {channels} channels",
            make=partial(examples.selective_scan_step, rows, channels, 16),
            shape=f"state {(rows, channels, 16)}",
            dtype=SINGLE,
            backward=False,
            work=4.0 * (2 * rows * channels * 16 + 4 * rows * channels + 2 * rows * 16),
            bound="bandwidth",
            others=_compiled_eager,
        )


def _linear(device: str) -> Iterator[Case]:
    rows, k, n = (3072, 256, 1024) if device == "cpu" else (32768, 256, 1024)
    yield Case(
        name="feed-forward",
        make=partial(examples.linear, rows, k, n),
        shape=f"x {(rows, k)}, weight {(n, k)}",
        dtype=SINGLE,
        backward=True,
        work=6.0 * rows * k * n,
        bound="products",
        others=_none,
    )


CASES: dict[str, Callable[[str], Iterator[Case]]] = {
    "two_hot_cross_entropy": partial(_losses, "two_hot_cross_entropy"),
    "hl_gauss_cross_entropy": partial(_losses, "hl_gauss_cross_entropy"),
    "two_hot_mean": partial(_losses, "two_hot_mean"),
    "attention": _attention,
    "attention_step": _steps,
    "selective_scan": _scans,
    "selective_scan_step": _scan_steps,
    "linear": _linear,
}
