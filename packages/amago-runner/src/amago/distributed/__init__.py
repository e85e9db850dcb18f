"""Data-parallel training in several processes."""

from amago.distributed.processes import Processes

__all__ = ["Processes"]
