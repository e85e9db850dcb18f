"""Kernels for sequence models in reinforcement learning: one public function per operation, several backends.

- `attention`: softmax attention over whole sequences, with window, sinks, logit clip and lengths.
- `attention_step`: one timestep per row against a `RingCache`, for rollouts.
- `available_backends`, `use_backend`: what can run, and how to insist on it.
"""

from amago.kernels.attention import RingCache, attention, attention_step
from amago.kernels.backends import Backend, available_backends, use_backend

__all__ = ["Backend", "RingCache", "attention", "attention_step", "available_backends", "use_backend"]
