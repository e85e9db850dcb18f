"""Training in several processes at once."""

from amago.distributed.accelerate import Processes

__all__ = ["Processes"]
