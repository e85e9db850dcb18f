"""Into which class of sizes a call falls: what the measured order of backends is looked up by.

A class depends on shapes, dtypes and options of a call alone, never on the numbers in tensors, and is found in
about a microsecond: a rollout asks for it at every call, and torch.compile traces it. Classes are few, for each is
measured on each machine by `python -m amago.kernels.tune`:

- precision: "single" (float32, float64) or "half" (bfloat16, float16), of the first tensor or of the ring;
- two-hot operations, scans and steps: "small" or "large", by how many numbers the largest tensor has;
- attention: "short" to 256 positions, "medium" to 1,024, "long"; and "plain" (causal or not), "masked" (a window,
  or rows of many lengths) or "scores" (clipped or biased), as torch's fused kernels need more for each;
- flex attention: the same lengths, with a "mask" function alone or "scores".
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SHORT, MEDIUM = 256, 1024  # longest sequences of these classes
SMALL = 1 << 17  # most numbers in the largest input of a small call
SMALL_RING = 1 << 19  # and in the keys of a small ring

_PRECISIONS = ("single", "half")
_SIZES = ("small", "large")
_LENGTHS = ("short", "medium", "long")


def _names(*parts: tuple[str, ...]) -> tuple[str, ...]:
    """All combinations of one word of each part."""
    names = [""]
    for part in parts:
        names = [f"{name} {word}".strip() for name in names for word in part]
    return tuple(names)


# Every class of each operation.
NAMES = {
    "two_hot_cross_entropy": _names(_SIZES, _PRECISIONS),
    "hl_gauss_cross_entropy": _names(_SIZES, _PRECISIONS),
    "two_hot_mean": _names(_SIZES, _PRECISIONS),
    "attention": _names(("plain", "masked", "scores"), _LENGTHS, _PRECISIONS),
    "attention_step": _names(_SIZES, _PRECISIONS),
    "flex_attention": _names(("mask", "scores"), _LENGTHS, _PRECISIONS),
    "flex_attention_step": _names(_SIZES, _PRECISIONS),
    "selective_scan": _names(_SIZES, _PRECISIONS),
    "selective_scan_step": _names(_SIZES, _PRECISIONS),
    "linear": _PRECISIONS,
}


def _precision(x: Tensor) -> str:
    return " half" if x.dtype == torch.bfloat16 or x.dtype == torch.float16 else " single"


def _length(q: Tensor) -> str:
    length = q.shape[1]
    if length <= SHORT:
        return " short"
    return " medium" if length <= MEDIUM else " long"


def _two_hot(logits: Tensor, *_: object, **__: object) -> str:
    return ("small" if logits.numel() <= SMALL else "large") + _precision(logits)


def _attention(q: Tensor, *_: object, **options: Any) -> str:
    if options["logit_clip"] is not None or (options["sink"] and options["sink_bias"] != 0.0):
        kind = "scores"
    else:
        kind = "plain" if options["window"] is None and options["lengths"] is None else "masked"
    return kind + _length(q) + _precision(q)


def _flex_attention(q: Tensor, *_: object, **options: Any) -> str:
    return ("mask" if options["score_mod"] is None else "scores") + _length(q) + _precision(q)


def _ring(q: Tensor, k: Tensor, v: Tensor, cache: Any, *_: object, **__: object) -> str:
    return ("small" if cache.keys.numel() <= SMALL_RING else "large") + _precision(cache.keys)


def _scan(u: Tensor, delta: Tensor, A: Tensor, *_: object, **__: object) -> str:
    # The states of all steps, which are never all kept, are what is computed.
    return ("small" if u.numel() * A.shape[1] <= SMALL else "large") + _precision(u)


def _scan_step(state: Tensor, u: Tensor, *_: object, **__: object) -> str:
    return ("small" if state.numel() <= SMALL else "large") + _precision(u)


def _linear(x: Tensor, *_: object, **__: object) -> str:
    return "half" if x.dtype == torch.bfloat16 or x.dtype == torch.float16 else "single"


FUNCTIONS: dict[str, Callable[..., str]] = {
    "two_hot_cross_entropy": _two_hot,
    "hl_gauss_cross_entropy": _two_hot,
    "two_hot_mean": _two_hot,
    "attention": _attention,
    "attention_step": _ring,
    "flex_attention": _flex_attention,
    "flex_attention_step": _ring,
    "selective_scan": _scan,
    "selective_scan_step": _scan_step,
    "linear": _linear,
}


@functools.cache
def device_class(device: torch.device) -> str:
    """What measurements on a device hold for: a GPU's name, or the processor's kind and its vector units."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return device.type
