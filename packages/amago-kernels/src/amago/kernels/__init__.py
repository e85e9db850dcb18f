"""Kernels for sequence models in reinforcement learning: one public function per operation, several backends.

- `attention`: softmax attention over whole sequences, with window, sinks, logit clip and lengths.
- `attention_step`: one timestep per row against a `RingCache`, for rollouts.
- `flex_attention`, `flex_attention_step`: the same with score and mask functions of the caller (`SlidingWindow`,
  `ClippedSinks` are two).
- `two_hot_cross_entropy`, `hl_gauss_cross_entropy`, `two_hot_mean`: critics that classify returns into `Bins`.
- `selective_scan`, `selective_scan_step`: Mamba's recurrence over whole sequences and step by step.
- `linear`: linear layers by the faster of two libraries, a leaky ReLU included.
- `available_backends`, `use_backend`: which backends can run, and how to request one; otherwise a fixed order per
  device decides.

Further modules: `memory` for training on a CPU, `acting` for rollouts on a CPU. Command lines:
`python -m amago.kernels.doctor` and `python -m amago.kernels.build`.
"""

from amago.kernels.attention import (
    ClippedSinks,
    RingCache,
    SlidingWindow,
    attention,
    attention_step,
    flex_attention,
    flex_attention_step,
)
from amago.kernels.backends import Backend, available_backends, use_backend
from amago.kernels.linear import linear
from amago.kernels.scan import selective_scan, selective_scan_step
from amago.kernels.two_hot import Bins, hl_gauss_cross_entropy, two_hot_cross_entropy, two_hot_mean

__all__ = [
    "Backend",
    "Bins",
    "ClippedSinks",
    "RingCache",
    "SlidingWindow",
    "attention",
    "attention_step",
    "available_backends",
    "flex_attention",
    "flex_attention_step",
    "hl_gauss_cross_entropy",
    "linear",
    "selective_scan",
    "selective_scan_step",
    "two_hot_cross_entropy",
    "two_hot_mean",
    "use_backend",
]
