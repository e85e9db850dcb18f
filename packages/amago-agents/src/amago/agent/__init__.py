"""Off-policy actor-critic agents for long sequences.

- `agent`: `Agent`, the algorithm; `multitask`: `MultiTaskAgent`, its variant with critics that classify returns.
- `base`: `BaseAgent`, the interface, with the encoders; agents by name.
- `return_head`: regression and classification of returns.
- `acting`: actions from distributions.
- `batch`: the training batch, and its real transitions.
- `losses`: returns, targets and losses; `filters`: weights of imitation; `gammas`: the discounts.
- `diagnostics`: metrics of an update.
"""

from amago.agent.agent import Agent
from amago.agent.base import (
    BaseAgent,
    get_action_dim_and_type,
    get_agent_cls,
    list_registered_agents,
    register_agent,
)
from amago.agent.batch import Batch
from amago.agent.filters import binary_filter, exp_filter, leaky_relu_filter
from amago.agent.gammas import Multigammas
from amago.agent.losses import nstep_return
from amago.agent.multitask import MultiTaskAgent

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
