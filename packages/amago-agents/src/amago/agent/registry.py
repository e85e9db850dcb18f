"""Registry of agents by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from amago.nets.registry import Registry

if TYPE_CHECKING:
    from amago.agent.base import BaseAgent

_AGENTS: Registry[BaseAgent] = Registry("agent")
_Agent = TypeVar("_Agent", bound="BaseAgent")


def register_agent(name: str) -> Callable[[type[_Agent]], type[_Agent]]:
    """Class decorator that registers an agent as `name`; ValueError if the name is taken."""
    return _AGENTS.register(name)


def get_agent_cls(name: str) -> type[BaseAgent]:
    """The agent registered as `name`; ValueError that suggests the nearest if the name is unknown."""
    return _AGENTS.get(name)


def list_registered_agents() -> list[str]:
    """All names, sorted."""
    return _AGENTS.names()
