"""gin's decorator with a type.

gin ships no types, and where a type checker finds none, a decorator turns the function below it into `Any` for
everyone who calls it. (Classes keep their type under any decorator.)
"""

from collections.abc import Callable
from typing import Any, TypeVar

import gin

Function = TypeVar("Function", bound=Callable[..., Any])


def configurable_function(module: str) -> Callable[[Function], Function]:
    """Registers a function with gin as `{module}.{its name}` and keeps its signature for type checkers."""
    decorate: Callable[[Function], Function] = gin.configurable(module=module)
    return decorate
