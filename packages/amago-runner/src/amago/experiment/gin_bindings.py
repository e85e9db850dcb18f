"""What gin holds: the configurables that exist, the values bound to them, and both as JSON.

gin writes its own config strings without the classes that are bound, so a run could not be rebuilt from them;
here a class becomes its import path. gin's tables of registered and bound names have no public accessor, which
is why this one module reads `gin.config._REGISTRY` and `gin.config._CONFIG`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import gin
import gin.config
import numpy as np

# Where configurables are defined. Builtin environments stay out: they import only what is played.
_PACKAGES = (
    "amago.nets",
    "amago.agent",
    "amago.hindsight",
    "amago.envs",
    "amago.loading",
    "amago.utils",
    "amago.experiment",
)
_LEFT_OUT = ("amago.envs.builtin",)
_UNKNOWN_CONFIGURABLE = re.compile(r"No configurable matching (?:reference )?'@?([\w./]+)(?:\(\))?'")
_UNKNOWN_PARAMETER = re.compile(r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'")


class Binding(NamedTuple):
    """One value that gin holds: `scope/selector.parameter = value`, the scope mostly empty."""

    scope: str
    selector: str
    parameter: str
    value: Any

    @property
    def key(self) -> str:
        """The name that gin's files use on the left of "="."""
        prefix = f"{self.scope}/" if self.scope else ""
        return f"{prefix}{self.selector}.{self.parameter}"


class NotWritableError(ValueError):
    """A value that has no form in JSON from which it could be built again, a lambda for example."""


@contextmanager
def unlocked() -> Iterator[None]:
    """Lets gin be changed, and locks it again afterwards if it was locked, also after an exception."""
    was_locked = gin.config_is_locked()
    try:
        with gin.unlock_config():
            yield
    finally:
        if was_locked and not gin.config_is_locked():
            gin.finalize()


@functools.cache
def import_configurables() -> None:
    """Imports the installed packages' configurables, so that gin knows their names."""
    with unlocked():
        for package in _PACKAGES:
            _import_tree(package)


def _import_tree(name: str) -> None:
    module = import_module(name)
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        full = f"{name}.{child.name}"
        if full not in _LEFT_OUT and child.name != "__main__":
            _import_tree(full)


def registered_selectors() -> list[str]:
    """The full selectors of every configurable, gin's own excepted."""
    return sorted(name for name, _ in gin.config._REGISTRY.items() if not name.startswith("gin."))


def selector_of(configurable: Callable[..., Any]) -> str | None:
    """The selector under which a class or function is registered, None if it is not configurable."""
    for selector, entry in gin.config._REGISTRY.items():
        if configurable is entry.wrapper or configurable is entry.wrapped:
            return selector
    return None


def parameters_of(configurable: Callable[..., Any]) -> list[str]:
    """Names of the arguments that gin may bind; also a base class's, if a constructor passes **kwargs on to it."""
    constructors: list[Callable[..., Any]] = [configurable]
    if isinstance(configurable, type):
        constructors = [vars(cls)["__init__"] for cls in configurable.__mro__ if "__init__" in vars(cls)]
    names: dict[str, None] = {}
    for constructor in constructors:
        parameters = inspect.signature(constructor).parameters.values()
        named = (each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
        names.update(dict.fromkeys(each.name for each in named if each.name != "self"))
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            break
    return list(names)


def nearest(name: str, known: list[str]) -> str:
    """ "did you mean ...?" with the most similar of the known names, or nothing if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


def explain(message: str) -> str:
    """gin's complaint about a name that it does not know, with the nearest name that it does know."""
    problem, *place = message.strip().split("\n")
    hint = ""
    if found := _UNKNOWN_PARAMETER.search(problem):
        names = parameters_of(gin.get_configurable(found[1].rpartition("/")[2]))
        hint = nearest(found[2], names) or f"its parameters are {', '.join(names)}"
    elif found := _UNKNOWN_CONFIGURABLE.search(problem):
        name = found[1].rpartition("/")[2]
        selectors = registered_selectors()
        known = selectors if "." in name else sorted({one.rpartition(".")[2] for one in selectors})
        hint = nearest(name, known) or _nearest_by_last_part(name, selectors) or "is its module imported?"
    return "\n".join([f"{problem} {hint}".rstrip(), *place])


def _nearest_by_last_part(name: str, selectors: list[str]) -> str:
    by_last_part = {one.rpartition(".")[2]: one for one in selectors}
    near = difflib.get_close_matches(name.rpartition(".")[2], by_last_part, n=1)
    return f"did you mean {by_last_part[near[0]]!r}?" if near else ""


def active_bindings() -> list[Binding]:
    """Every value that gin holds, sorted by key."""
    bindings = [
        Binding(scope, selector, parameter, value)
        for (scope, selector), values in gin.config._CONFIG.items()
        for parameter, value in values.items()
    ]
    return sorted(bindings, key=lambda binding: binding.key)


def import_path(target: Any) -> str:
    """`module:qualified.name` of a class or function; NotWritableError if that does not lead back to it."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name:
        raise NotWritableError(f"{target!r} has no import path")
    if "<lambda>" in name:
        line = target.__code__.co_firstlineno
        raise NotWritableError(f"a lambda in {module}, line {line}, has no name to import it by")
    if module == "__main__":
        raise NotWritableError(
            f"{name!r} is defined in the script that was started, which others cannot import"
        )
    try:
        found = resolve(f"{module}:{name}")
    except (ImportError, AttributeError) as error:
        raise NotWritableError(f"{name!r} is local to a function of {module}") from error
    if found is not target:
        raise NotWritableError(f"{module}:{name} now names something else")
    return f"{module}:{name}"


def resolve(path: str) -> Any:
    """What an import path names."""
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), import_module(module))


def encode(value: Any) -> Any:
    """A value as JSON: plain values as they are, others as a dict with one key that says what they are.

    Raises:
        NotWritableError: the value, or something in it, cannot be rebuilt from text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, Mapping):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, gin.config.ConfigurableReference):
        return {"gin": repr(value)}
    if isinstance(value, functools.partial):
        parts = [import_path(value.func), [encode(arg) for arg in value.args], encode(dict(value.keywords))]
        return {"partial": parts}
    return {"import": import_path(value)}


def decode(value: Any) -> Any:
    """Inverse of `encode`. What gin refers to must be imported.

    Raises:
        ValueError: a form that `encode` never writes.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind == "partial":
        path, args, keywords = content
        return functools.partial(resolve(path), *map(decode, args), **decode(keywords))
    if kind == "import":
        return resolve(content)
    if kind == "gin":
        return gin.config.parse_value(content)
    raise ValueError(f"unknown kind of value {kind!r}: written by a newer version?")


def bindings_as_json() -> tuple[dict[str, Any], dict[str, str]]:
    """What gin holds as {key: JSON}, and {key: reason} for what cannot be written."""
    written: dict[str, Any] = {}
    unwritable: dict[str, str] = {}
    for binding in active_bindings():
        try:
            written[binding.key] = encode(binding.value)
        except NotWritableError as error:
            unwritable[binding.key] = str(error)
    return written, unwritable


def bind(bindings: Mapping[str, Any]) -> None:
    """Binds what `bindings_as_json` wrote; importing what is needed, and leaving other bindings alone."""
    import_configurables()
    with unlocked():
        for key, value in bindings.items():
            gin.bind_parameter(key, decode(value))
