"""Kernels for sequence models in reinforcement learning: one public function per operation, several backends.

- `attention`: softmax attention over whole sequences, with window, sinks, logit clip and lengths.
- `attention_step`: one timestep per row against a `RingCache`, for rollouts.
- `two_hot_cross_entropy`, `hl_gauss_cross_entropy`, `two_hot_mean`: critics that classify returns into `Bins`.
- `available_backends`, `use_backend`: what can run, and how to insist on it.
"""

from amago.kernels.attention import RingCache, attention, attention_step
from amago.kernels.backends import Backend, available_backends, use_backend
from amago.kernels.two_hot import Bins, hl_gauss_cross_entropy, two_hot_cross_entropy, two_hot_mean

__all__ = [
    "Backend",
    "Bins",
    "RingCache",
    "attention",
    "attention_step",
    "available_backends",
    "hl_gauss_cross_entropy",
    "two_hot_cross_entropy",
    "two_hot_mean",
    "use_backend",
]
