"""Off-policy actor-critic agents for long sequences.

- `agent`: `Agent`, the algorithm; `multitask`: `MultiTaskAgent`, its variant with critics that classify returns.
- `base`: `BaseAgent`, the interface, with the encoders.
- `return_head`: regression and classification of returns.
- `acting`: actions from distributions.
- `batch`: the training batch; `transitions`: its real transitions.
- `losses`, `returns`, `targets`, `filters`, `gammas`: functions of tensors, and the discounts.
- `diagnostics`: metrics of an update; `registry`: agents by name.
"""

from amago.agent.agent import Agent
from amago.agent.base import BaseAgent, get_action_dim_and_type
from amago.agent.batch import Batch
from amago.agent.filters import binary_filter, exp_filter, leaky_relu_filter
from amago.agent.gammas import Multigammas
from amago.agent.multitask import MultiTaskAgent
from amago.agent.registry import get_agent_cls, list_registered_agents, register_agent
from amago.agent.returns import nstep_return

__all__ = [
    "Agent",
    "BaseAgent",
    "Batch",
    "MultiTaskAgent",
    "Multigammas",
    "binary_filter",
    "exp_filter",
    "get_action_dim_and_type",
    "get_agent_cls",
    "leaky_relu_filter",
    "list_registered_agents",
    "nstep_return",
    "register_agent",
]
