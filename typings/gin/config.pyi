"""Types of the two tables of gin-config that have no public accessor: what is registered, what is bound."""

from collections.abc import Callable, ItemsView
from typing import Any

class Configurable:
    wrapper: Callable[..., Any]
    wrapped: Callable[..., Any]
    selector: str
    denylist: list[str] | None

class ConfigurableReference:
    @property
    def configurable(self) -> Configurable: ...

class SelectorMap:
    def items(self) -> ItemsView[str, Configurable]: ...
    def matching_selectors(self, partial_selector: str) -> list[str]: ...
    def minimal_selector(self, complete_selector: str) -> str: ...
    def __contains__(self, complete_selector: str) -> bool: ...
    def __getitem__(self, complete_selector: str) -> Configurable: ...

_REGISTRY: SelectorMap
_CONFIG: dict[tuple[str, str], dict[str, Any]]

def parse_value(value: str) -> Any: ...
