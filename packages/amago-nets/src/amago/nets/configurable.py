"""gin's decorator with a type, and configured functions as plain ones.

gin ships no types, and where a type checker finds none, a decorator turns the function below it into `Any` for
everyone who calls it. (Classes keep their type under any decorator.)
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import gin

Function = TypeVar("Function", bound=Callable[..., Any])


def configurable_function(module: str) -> Callable[[Function], Function]:
    """Registers a function with gin as `{module}.{its name}` and keeps its signature for type checkers."""
    decorate: Callable[[Function], Function] = gin.configurable(module=module)
    return decorate


def with_bindings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with what gin binds of its arguments filled in now.

    gin looks bindings up, under a lock, at every call: too slow for a call in every training step, and beyond
    what torch.compile can trace. What gin does not know, or knows under a scope only, comes back as it is.
    """
    try:
        bindings = gin.get_bindings(function)
    except ValueError:
        return function
    return functools.partial(inspect.unwrap(function), **bindings)
