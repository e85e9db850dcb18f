"""Data-parallel training in several processes."""

from amago.distributed.accelerate import Processes

__all__ = ["Processes"]
