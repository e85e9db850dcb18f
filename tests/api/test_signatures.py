"""Every public name keeps the arguments and defaults that user code relies on, as tests/api/api.json lists them.

Code written against that list must go on working: its positional order, its argument names and its defaults. What
we add are arguments with defaults, after those of the list or by keyword only.
"""

import ast
import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import pytest

HERE = Path(__file__).parent
API: dict[str, dict[str, Any]] = json.loads((HERE / "api.json").read_text())

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def listed_names() -> Iterator[tuple[str, str]]:
    """(module, name) of everything at the top level of a module of the list."""
    for module, content in API.items():
        names = [*content.get("exports", []), *content.get("functions", {}), *content.get("classes", {})]
        yield from ((module, name) for name in names)


def module_exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def has_name(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError as error:  # computed from an optional package that is not installed
        return "pip install" in str(error)


def missing_names() -> list[str]:
    """What the list has and we have not: a module by its own name, anything else with its module in front."""
    missing = {module for module in API if not module_exists(module)}
    for module, name in listed_names():
        if module not in missing and not has_name(module, name):
            missing.add(f"{module}.{name}")
    return sorted(missing)


def listed_parameters(signature: str) -> list[tuple[str, str | None]]:
    """(name, source text of the default) of each argument; names of the variable ones with their stars."""
    arguments = ast.parse(f"def f({signature}): pass").body[0].args  # type: ignore[attr-defined]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    listed = [(a.arg, d and ast.unparse(d)) for a, d in zip(arguments.args, defaults, strict=True)]
    listed += [(f"*{arguments.vararg.arg}", None)] if arguments.vararg else []
    listed += [(f"**{arguments.kwarg.arg}", None)] if arguments.kwarg else []
    return listed


def same_default(listed: str, ours: Any) -> bool:
    """Whether a default in source text is our object: literals by value, classes and functions by name."""
    try:
        value = ast.literal_eval(listed)
    except ValueError:
        if listed == "gin.REQUIRED":
            return ours is gin.REQUIRED
        return getattr(ours, "__name__", None) == listed
    if isinstance(value, list | tuple):
        return isinstance(ours, list | tuple) and list(value) == list(ours)
    return value == ours and (type(value) is type(ours) or isinstance(value, float))


def differences(listed: str, ours: inspect.Signature) -> list[str]:
    """What a caller who goes by the list would trip over, in words."""
    found = []
    wanted = listed_parameters(listed)
    names = {name for name, _ in wanted}
    parameters = list(ours.parameters.values())
    positional = [p.name for p in parameters if p.kind in POSITIONAL]
    kinds = {p.kind for p in parameters}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds
    passes_on = takes_any and inspect.Parameter.VAR_POSITIONAL in kinds
    for index, (name, default) in enumerate(wanted):
        if name.startswith("*") or (passes_on and index >= len(positional)):
            continue
        if positional[index : index + 1] != [name]:
            found.append(f"argument {index} should be {name!r}, positional: {positional}")
        elif default is not None and ours.parameters[name].default is inspect.Parameter.empty:
            found.append(f"{name} should have the default {default}")
        elif default is not None and not same_default(default, ours.parameters[name].default):
            found.append(f"{name} should default to {default}, got {ours.parameters[name].default!r}")
        if ours.parameters.get(name) and ours.parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
            found.append(f"{name} cannot be passed by name")
    for parameter in parameters:
        added = parameter.name not in names and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        )
        if added and parameter.default is inspect.Parameter.empty:
            found.append(f"{parameter.name} is ours and has no default")
    if "**kwargs" in names and "*args" not in names and not takes_any:
        found.append("should take further keyword arguments")
    return found


def bound_signature(owner: type, name: str) -> inspect.Signature:
    """The signature of a method as a caller of an instance sees it, without `self`."""
    signature = inspect.signature(getattr(owner, name))
    if isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod):
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def listed_classes() -> list[Any]:
    return [
        pytest.param(module, name, id=f"{module}.{name}")
        for module, content in API.items()
        for name in content.get("classes", {})
    ]


def listed_functions() -> list[Any]:
    return [
        pytest.param(module, name, signature, id=f"{module}.{name}")
        for module, content in API.items()
        for name, signature in content.get("functions", {}).items()
    ]


def test_every_name_of_the_list_exists() -> None:
    assert missing_names() == []


@pytest.mark.parametrize(("module", "name", "signature"), listed_functions())
def test_function_takes_the_listed_arguments(module: str, name: str, signature: str) -> None:
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    assert differences(signature, inspect.signature(function)) == []


@pytest.mark.parametrize(("module", "name"), listed_classes())
def test_class_has_the_listed_constructor_base_methods_and_properties(module: str, name: str) -> None:
    listed = API[module]["classes"][name]
    cls: type = getattr(importlib.import_module(module), name)
    found = [f"__init__: {d}" for d in differences(listed["init"], inspect.signature(cls))]
    if listed.get("base") and listed["base"] not in {base.__name__ for base in cls.__mro__}:
        found.append(f"should be a {listed['base']}")
    for method, signature in listed.get("methods", {}).items():
        if not callable(getattr(cls, method, None)):
            found.append(f"has no method {method}")
        else:
            found += [f"{method}: {d}" for d in differences(signature, bound_signature(cls, method))]
    annotated = {field for base in cls.__mro__ for field in getattr(base, "__annotations__", {})}
    found += [
        f"has no {p}" for p in listed.get("properties", []) if not hasattr(cls, p) and p not in annotated
    ]
    assert found == []


@pytest.mark.parametrize(
    ("listed", "source", "count"),
    [
        ("a, b=1", "a, b=1", 0),
        ("a, b=1", "a, b=1, c=None", 0),
        ("a, b=1", "a, b=1, *, c=None", 0),
        ("a, b", "a, b=None", 0),
        ("a, b=[1, 2]", "a, b=(1, 2)", 0),
        ("a, b=1.0", "a, b=1", 0),
        ("*args, **kwargs", "", 0),
        ("a, **kwargs", "a, **kwargs", 0),
        ("a, b=1", "*args, **kwargs", 0),
        ("a, b=1", "a, b=2", 1),
        ("a, b=1", "a, b=True", 1),
        ("a, b=1", "a, b", 1),
        ("a, b=1", "a, *, b=1", 1),
        ("a, b=1", "b, a=1", 2),
        ("a, b=1", "a, c, b=1", 2),
        ("a", "a, b", 1),
        ("a, b", "a, c", 2),
        ("a", "a, /", 1),
        ("a, **kwargs", "a", 1),
    ],
)
def test_the_comparison_finds_what_breaks_a_caller(listed: str, source: str, count: int) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f({source}): pass", namespace)
    assert len(differences(listed, inspect.signature(namespace["f"]))) == count
