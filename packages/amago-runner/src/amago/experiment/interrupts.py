"""Deferring Ctrl-C, so that nothing is recorded by half; implemented in amago-envs, which uses it too."""

from amago.envs.interrupts import DeferredInterrupts, defer_interrupts

__all__ = ["DeferredInterrupts", "defer_interrupts"]
