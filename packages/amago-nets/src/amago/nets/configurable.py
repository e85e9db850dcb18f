"""gin for functions: a typed decorator, and bindings applied ahead of time.

gin ships no types, so its decorator would turn functions into `Any` for type checkers (classes keep their type).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import gin

Function = TypeVar("Function", bound=Callable[..., Any])


def configurable_function(module: str) -> Callable[[Function], Function]:
    """Registers a function with gin as `{module}.{its name}` and keeps its signature."""
    decorate: Callable[[Function], Function] = gin.configurable(module=module)
    return decorate


def with_bindings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its current gin bindings applied.

    gin looks bindings up under a lock at every call, which is slow and which torch.compile cannot trace. Functions
    that gin does not know, or knows only in a scope, are returned unchanged.
    """
    try:
        bindings = gin.get_bindings(function)
    except ValueError:
        return function
    return functools.partial(inspect.unwrap(function), **bindings)
