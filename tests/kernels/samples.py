"""The example calls that every backend is checked with: odd sizes, every option, all precisions, odd memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from tests.kernels import examples
from tests.kernels.examples import Example, repeated, strided
from torch import Tensor

from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
Maker = Callable[..., Example]


def sample_calls(operation: str, device: torch.device | str) -> Iterator[Example]:
    """Calls of an operation, with random inputs that are the same every time.

    Raises:
        KeyError: for an operation that has no samples.
    """
    samples = SAMPLES[operation]
    for dtype in DTYPES:
        if INTERPRETED and dtype == torch.bfloat16:
            continue  # Triton's interpreter computes wrongly in it
        for seed, (name, maker) in enumerate(samples.items()):
            example = maker(device=device, dtype=dtype, seed=seed)
            yield dataclasses.replace(example, name=f"{name}, {dtype}")
    first = next(iter(samples.values()))(device=device, seed=100)
    yield dataclasses.replace(first.mapped(strided), name="strided")
    yield dataclasses.replace(first.mapped(repeated), name="all rows in the memory of one")


def _falls_with_distance(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return score - 0.25 * (h + 1) * (q_idx - kv_idx).abs()


def _near_or_every_fifth(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return ((q_idx - kv_idx).abs() <= 3) | (kv_idx % 5 == 0)


def _losses(operation: str) -> dict[str, Maker]:
    """Of a two-hot loss."""
    make = partial(examples.two_hot, operation)
    ends = (-1e3, -1e3 - 1e-3, 1e5, 1e5 + 1.0, -3e38, 1e30, math.inf, -math.inf, 0.0, 1e-30)
    return {
        "33 bins": make,
        "128 bins, many rows": partial(make, rows=(7, 130, 4), bins=128),
        "2 bins": partial(make, rows=(5, 3), bins=2),
        "1024 bins": partial(make, rows=(3, 2, 2), bins=1024),
        "one row": partial(make, rows=(), bins=17),
        "no row": partial(make, rows=(3, 0, 2), bins=17),
        "linear support": partial(make, bins=Bins(-50.0, 70.0, 101, symlog=False)),
        "mask and weight": partial(make, mask=True, weight=True),
        "targets at and beyond the support": partial(make, rows=(20, 2, 2), targets=ends),
        "NaN targets": partial(make, targets=(1.0, math.nan, 2.0)),
        "logits of 1e4": partial(make, size=1e4),
    }


SAMPLES: dict[str, dict[str, Maker]] = {
    "two_hot_cross_entropy": _losses("two_hot_cross_entropy"),
    "hl_gauss_cross_entropy": {
        **_losses("hl_gauss_cross_entropy"),
        "narrow": partial(examples.two_hot, "hl_gauss_cross_entropy", sigma=0.1),
        "wide": partial(examples.two_hot, "hl_gauss_cross_entropy", sigma=20.0),
    },
    "two_hot_mean": {
        "33 bins": partial(examples.two_hot, "two_hot_mean"),
        "128 bins, many rows": partial(examples.two_hot, "two_hot_mean", rows=(7, 130, 4), bins=128),
        "1024 bins": partial(examples.two_hot, "two_hot_mean", rows=(3, 2), bins=1024),
        "2 bins": partial(examples.two_hot, "two_hot_mean", rows=(5, 3), bins=2),
        "linear support": partial(
            examples.two_hot, "two_hot_mean", bins=Bins(-50.0, 70.0, 101, symlog=False)
        ),
        "logits of 1e4": partial(examples.two_hot, "two_hot_mean", size=1e4),
    },
    "attention": {
        "causal": examples.attention,
        "one position": partial(examples.attention, length=1),
        "everything seen": partial(examples.attention, length=33, causal=False, dim=8),
        "window": partial(examples.attention, length=70, window=5, dim=24),
        "window and sinks": partial(examples.attention, length=70, window=5, sink=2, dim=32),
        "window of one": partial(examples.attention, length=17, window=0),
        "clip and biased sinks": partial(
            examples.attention, length=40, window=9, sink=3, sink_bias=1.5, logit_clip=0.7, dim=40
        ),
        "rows of many lengths": partial(examples.attention, rows=5, length=66, ragged=True),
        "lengths, window, sinks, clip": partial(
            examples.attention, rows=5, length=66, ragged=True, window=6, sink=2, logit_clip=1.0
        ),
        "long": partial(examples.attention, rows=1, length=257, heads=1, dim=64),
        "wide heads": partial(examples.attention, length=20, dim=128),
        "scores of ten thousand": partial(examples.attention, length=20, size=25.0, scale=1.0),
    },
    "attention_step": {
        "whole ring": examples.attention_step,
        "one slot": partial(examples.attention_step, window=1),
        "heads of 24": partial(examples.attention_step, rows=5, window=40, heads=3, dim=24),
        "heads of 128": partial(examples.attention_step, window=33, dim=128),
        "window": partial(examples.attention_step, window=9, seen=3),
        "window, sinks, clip": partial(
            examples.attention_step, window=9, seen=2, sink=2, sink_bias=0.7, logit_clip=0.9
        ),
        "rotated": partial(examples.attention_step, window=9, rotary_base=10000.0),
        "many rows, a long ring": partial(examples.attention_step, rows=17, window=300, dim=64),
    },
    "flex_attention": {
        "mask": partial(examples.attention, length=33, mask_mod=_near_or_every_fifth),
        "scores": partial(examples.attention, length=33, score_mod=_falls_with_distance),
        "both, and lengths": partial(
            examples.attention,
            rows=4,
            length=21,
            ragged=True,
            score_mod=_falls_with_distance,
            mask_mod=_near_or_every_fifth,
        ),
    },
    "flex_attention_step": {
        "mask": partial(examples.attention_step, window=9, mask_mod=_near_or_every_fifth),
        "scores": partial(examples.attention_step, window=9, score_mod=_falls_with_distance),
    },
    "selective_scan": {
        "all inputs": examples.selective_scan,
        "one step": partial(examples.selective_scan, length=1),
        "one of each": partial(examples.selective_scan, rows=1, channels=1, states=1, length=5),
        "first state given, last returned": partial(examples.selective_scan, initial=True, last_state=True),
        "the least inputs": partial(
            examples.selective_scan, left_out=("D", "z", "delta_bias"), delta_softplus=False, length=9
        ),
        "Mamba's states": partial(examples.selective_scan, channels=65, states=16, length=130),
    },
    "selective_scan_step": {
        "all inputs": examples.selective_scan_step,
        "one of each": partial(examples.selective_scan_step, rows=1, channels=1, states=1),
        "Mamba's states": partial(examples.selective_scan_step, rows=5, channels=130, states=16),
    },
    "linear": {
        "leaky": examples.linear,
        "plain": partial(examples.linear, leaky=None),
        "many": partial(examples.linear, rows=300, inputs=256, outputs=512),
    },
}
