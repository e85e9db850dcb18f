"""Off-policy actor-critic agents for long sequences."""

from amago.agent.batch import Batch

__all__ = ["Batch"]
