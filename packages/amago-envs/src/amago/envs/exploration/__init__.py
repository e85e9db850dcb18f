"""Exploration: wrappers of training environments that add noise to the policy's actions."""

from amago.envs.exploration.base import (
    ExplorationWrapper,
    get_exploration_cls,
    list_registered_explorations,
    register_exploration,
)
from amago.envs.exploration.egreedy import BilevelEpsilonGreedy, EpsilonGreedy

__all__ = [
    "BilevelEpsilonGreedy",
    "EpsilonGreedy",
    "ExplorationWrapper",
    "get_exploration_cls",
    "list_registered_explorations",
    "register_exploration",
]
