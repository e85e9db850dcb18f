"""gin's configurables and bindings: names, suggestions for unknown ones, and bindings as JSON for run.json.

gin's own config strings omit bound classes, so a run could not be rebuilt from them; here a class is written as
its import path. gin has no public list of configurables and bindings, so this module reads its
tables `gin.config._REGISTRY` and `gin.config._CONFIG`.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import gin
import gin.config
import numpy as np

from amago.nets.registry import did_you_mean

# Packages that define configurables. Builtin environments are left out: each needs packages of its own.
_PACKAGES = (
    "amago.nets",
    "amago.agent",
    "amago.hindsight",
    "amago.envs",
    "amago.loading",
    "amago.utils",
    "amago.experiment",
)
_SKIPPED = ("amago.envs.builtin",)
_UNKNOWN_CONFIGURABLE = re.compile(r"No configurable matching (?:reference )?'@?([\w./]+)(?:\(\))?'")
_UNKNOWN_PARAMETER = re.compile(r"Configurable '([\w./]+)' doesn't have a parameter named '(\w+)'")


class Binding(NamedTuple):
    """One bound value: `scope/selector.parameter = value`; the scope is usually empty."""

    scope: str
    selector: str
    parameter: str
    value: Any

    @property
    def key(self) -> str:
        """The left side of "=" in a gin file."""
        prefix = f"{self.scope}/" if self.scope else ""
        return f"{prefix}{self.selector}.{self.parameter}"


class NotWritableError(ValueError):
    """A value that cannot be written as JSON and rebuilt from it, for example a lambda."""


@contextmanager
def unlocked() -> Iterator[None]:
    """Unlocks gin; afterwards locks it again if it was locked, also after an exception."""
    was_locked = gin.config_is_locked()
    try:
        with gin.unlock_config():
            yield
    finally:
        if was_locked and not gin.config_is_locked():
            gin.finalize()


@functools.cache
def import_configurables() -> None:
    """Imports every module of the installed packages that may define configurables."""
    with unlocked():
        for package in _PACKAGES:
            _import_tree(package)


def _import_tree(name: str) -> None:
    module = import_module(name)
    for child in pkgutil.iter_modules(getattr(module, "__path__", ())):
        full = f"{name}.{child.name}"
        if full not in _SKIPPED and child.name != "__main__":
            _import_tree(full)


def selector_of(configurable: Callable[..., Any]) -> str | None:
    """The full selector of a class or function; None if it is not configurable."""
    for selector, entry in gin.config._REGISTRY.items():
        if configurable is entry.wrapper or configurable is entry.wrapped:
            return selector
    return None


def parameters_of(configurable: Callable[..., Any]) -> list[str]:
    """Names of the arguments that gin can bind, those of base classes included if `**kwargs` reach them."""
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


def explain(message: str) -> str:
    """gin's error message about an unknown name, with the most similar known name."""
    problem, *location = message.strip().split("\n")
    hint = ""
    if found := _UNKNOWN_PARAMETER.search(problem):
        names = parameters_of(gin.get_configurable(found[1].rpartition("/")[2]))
        hint = did_you_mean(found[2], names) or f" Its parameters are {', '.join(names)}."
    elif found := _UNKNOWN_CONFIGURABLE.search(problem):
        selectors = [name.split(".") for name, _ in gin.config._REGISTRY.items()]
        # A selector may be cut at any dot, so every ending is a name.
        known = {".".join(parts[start:]) for parts in selectors for start in range(len(parts))}
        hint = did_you_mean(found[1].rpartition("/")[2], sorted(known)) or " Is its module imported?"
    return "\n".join([problem + hint, *location])


def active_bindings() -> list[Binding]:
    """All bound values, sorted by key."""
    bindings = [
        Binding(scope, selector, parameter, value)
        for (scope, selector), values in gin.config._CONFIG.items()
        for parameter, value in values.items()
    ]
    return sorted(bindings, key=lambda binding: binding.key)


def import_path(target: Any) -> str:
    """`module:qualified.name` of a class or function; raises NotWritableError if it cannot be imported by it."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if not module or not name:
        raise NotWritableError(f"{target!r} has no import path")
    if "<lambda>" in name:
        line = target.__code__.co_firstlineno
        raise NotWritableError(f"a lambda in {module}, line {line}, cannot be imported")
    if module == "__main__":
        raise NotWritableError(f"{name!r} is defined in the main script, which other processes cannot import")
    try:
        found = resolve(f"{module}:{name}")
    except (ImportError, AttributeError) as error:
        raise NotWritableError(f"{name!r} is local to a function of {module}") from error
    if found is not target:
        raise NotWritableError(f"{module}:{name} is another object by now")
    return f"{module}:{name}"


def add_working_folder_to_path() -> None:
    """Makes modules of the working folder importable, after all others.

    Python does so by itself only for `python -m` and for scripts that lie there, and not for console scripts.
    """
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)


def resolve(path: str) -> Any:
    """The class or function of an import path; its module may lie in the working folder."""
    add_working_folder_to_path()
    module, _, name = path.partition(":")
    return functools.reduce(getattr, name.split("."), import_module(module))


def encode(value: Any) -> Any:
    """A value as JSON: plain values as they are, others as a dictionary {kind: content}.

    Raises:
        NotWritableError: the value, or a part of it, cannot be rebuilt from text.
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
        return {"gin": [value.configurable.wrapped.__module__, repr(value)]}
    if isinstance(value, functools.partial):
        arguments = [encode(arg) for arg in value.args]
        return {"partial": [import_path(value.func), arguments, encode(dict(value.keywords))]}
    return {"import": import_path(value)}


def decode(value: Any) -> Any:
    """Inverse of `encode`, for parts of amago and what the user trusts, see `load_by_name`.

    Raises:
        ValueError: a kind that `encode` does not write, or a name that is not trusted.
    """
    from amago.experiment.trusted import load_by_name, require_trusted_module

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
        return functools.partial(load_by_name(path), *map(decode, args), **decode(keywords))
    if kind == "import":
        return load_by_name(content)
    if kind == "gin":
        module, text = content
        require_trusted_module(module, f"{module}:{text}")
        add_working_folder_to_path()
        import_module(module)  # registers the configurable that the text names
        return gin.config.parse_value(text)
    raise ValueError(f"unknown kind of value {kind!r}: written by a newer version?")


def bindings_as_json() -> tuple[dict[str, Any], dict[str, str]]:
    """All bound values as {key: JSON}, and {key: reason} for those that cannot be written."""
    written: dict[str, Any] = {}
    unwritable: dict[str, str] = {}
    for binding in active_bindings():
        try:
            written[binding.key] = encode(binding.value)
        except NotWritableError as error:
            unwritable[binding.key] = str(error)
    return written, unwritable


def bind(bindings: Mapping[str, Any]) -> None:
    """Binds values that `bindings_as_json` wrote, on top of the present ones."""
    import_configurables()
    with unlocked():
        for key, value in bindings.items():
            gin.bind_parameter(key, decode(value))


@contextmanager
def bound_alone(bindings: Mapping[str, Any], kept: Sequence[str] = ()) -> Iterator[None]:
    """Within the context, gin holds `bindings` and nothing else; afterwards, what it held before.

    Bindings of configurables that are not imported are left out: nothing that is built here can use them, and the
    packages of a run's environments need not be installed.

    Args:
        bindings: what `bindings_as_json` wrote.
        kept: keys of present bindings that stay.
    """
    import_configurables()
    before = {key: dict(values) for key, values in gin.config._CONFIG.items()}
    staying = [binding for binding in active_bindings() if binding.key in kept]
    pending = dict(bindings)
    try:
        with unlocked():
            gin.config._CONFIG.clear()
            for binding in staying:
                gin.bind_parameter(binding.key, binding.value)
            # Decoding a value may import further configurables.
            while known := [key for key in pending if _is_registered(key)]:
                for key in known:
                    gin.bind_parameter(key, decode(pending.pop(key)))
        yield
    finally:
        gin.config._CONFIG.clear()
        gin.config._CONFIG.update(before)


def _is_registered(key: str) -> bool:
    selector = key.rpartition("/")[2].rpartition(".")[0]
    return bool(gin.config._REGISTRY.matching_selectors(selector))
