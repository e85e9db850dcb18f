"""Command-line options: generated from the fields of `Recipe`, and the parsing of KEY=VALUE arguments."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from amago.cli.recipe import QUICKSTART, RECIPES, Recipe


class UsageProblem(typer.BadParameter):
    """A value on the command line that cannot be used; shown without a traceback, with exit code 2.

    Args:
        message: what is wrong, the value received and the remedy.
        option: the option or argument as it is typed, e.g. "--env-arg".
    """

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message, param_hint=option)
        self.option = option


_HINTS = get_type_hints(Recipe, include_extras=True)
# The settings that have an option.
OPTIONS = [name for name, hint in _HINTS.items() if get_origin(hint) is Annotated]


def option_name(setting: str) -> str:
    """The option that sets a field of `Recipe`, e.g. "--batch-size" for "batch_size"; "ENV" for "env"."""
    return {"env": "ENV", "env_args": "--env-arg"}.get(setting, f"--{setting.replace('_', '-')}")


def recipe_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that adds options for fields of `Recipe` to a command, for all of `OPTIONS` unless some are named.

    The command receives the settings given on the command line as the dictionary `changes`.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values() if p.name != "changes"]
        settings = _option_parameters(names or OPTIONS)

        @functools.wraps(command)
        def with_options(**values: Any) -> None:
            given = {p.name: values.pop(p.name) for p in settings}
            changes = {name: _value(name, value) for name, value in given.items() if value not in (None, [])}
            command(changes=changes, **values)

        # typer reads both.
        with_options.__signature__ = signature.replace(parameters=[*settings, *own])  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in [*settings, *own]}
        return with_options

    return decorate


def _option_parameters(names: Sequence[str]) -> list[inspect.Parameter]:
    """One keyword parameter per option, with the annotation that typer reads."""
    parameters = []
    for field in dataclasses.fields(Recipe):
        if field.name not in names:
            continue
        kind, option = get_args(_HINTS[field.name])
        annotation = Annotated[_option_type(kind) | None, _with_default(option, field)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def _option_type(kind: Any) -> Any:
    """The type of a field for typer: an Enum for a Literal, a list of KEY=VALUE texts for a dictionary."""
    if NoneType in (members := get_args(kind)):
        (kind,) = (each for each in members if each is not NoneType)
    if get_origin(kind) is Literal:
        return Enum("Choice", {choice: choice for choice in get_args(kind)})
    return list[str] if get_origin(kind) is Mapping else kind


def _with_default(option: OptionInfo, field: dataclasses.Field[Any]) -> OptionInfo:
    """A copy of the option with its name, and with its default values in the help text."""
    option = copy.copy(option)
    option.param_decls = (option_name(field.name),)
    default = option.show_default if isinstance(option.show_default, str) else field.default
    option.show_default = False
    if default is not dataclasses.MISSING:
        by_kind: dict[str, Any] = {kind: settings.get(field.name) for kind, settings in RECIPES.items()}
        by_kind["quickstart"] = getattr(QUICKSTART, field.name)
        others = [
            f"; {kind}: {value}" for kind, value in by_kind.items() if value not in (None, field.default)
        ]
        option.help = f"{option.help} [dim]\\[default: {default}{''.join(others)}][/]"
    return option


def _value(setting: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return parse_arguments(value, option_name(setting)) if isinstance(value, list) else value


def parse_literal(text: str) -> object:
    """A Python literal as its value; `true`, `false` and `none` in any case; any other text as itself."""
    words = {"true": True, "false": False, "none": None}
    if text.casefold() in words:
        return words[text.casefold()]
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value


def split_assignment(text: str, option: str) -> tuple[str, str]:
    """Splits "key=value" at the first "=" and strips both; raises UsageProblem if one is empty."""
    key, _, value = (part.strip() for part in text.partition("="))
    if not key or not value:
        raise UsageProblem(f"{text!r} is not of the form KEY=VALUE.", option)
    return key, value


def parse_arguments(texts: Sequence[str], option: str) -> dict[str, object]:
    """Repeated "key=value" texts as a dictionary of literals; raises UsageProblem for a repeated key."""
    arguments: dict[str, object] = {}
    for text in texts:
        key, value = split_assignment(text, option)
        if key in arguments:
            raise UsageProblem(f"{key!r} is given twice.", option)
        arguments[key] = parse_literal(value)
    return arguments
