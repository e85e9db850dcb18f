"""Writes docs/reference/cli.md and defaults.md from the commands' options, the recipes and the registries.

python scripts/docs_tables.py
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from amago.cli.app import app
from amago.cli.listing import NAMES
from amago.cli.options import OPTIONS, option_name
from amago.cli.recipe import QUICKSTART, QUICKSTART_NAME, RECIPES, Recipe
from amago.envs.builtin.catalog import KINDS

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
DEFAULT = re.compile(r"(.*?)(?: \[default: (.*)\])?")  # recipe options have theirs in the help


def cli_page() -> str:
    """`amago-run --help` and the help of every command, as tables."""
    group: Any = typer.main.get_command(app)
    lines = [
        "# amago-run",
        "",
        f"{group.help} This page lists the output of `amago-run COMMAND --help`.",
        "",
        "| command | |",
        "|---|---|",
        *(
            f"| [`{name}`](#{name}) | {cell(first_paragraph(command.help))} |"
            for name, command in group.commands.items()
        ),
    ]
    for name, command in group.commands.items():
        lines += ["", f"## {name}", "", *command_section(name, command)]
    return "\n".join(lines) + "\n"


def command_section(name: str, command: Any) -> list[str]:
    parameters = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    options = [each for each in parameters if each.param_type_name == "option" and each.name != "help"]
    usage = " ".join(
        ["amago-run", name, *(["[OPTIONS]"] if options else []), *map(argument_usage, arguments)]
    )
    lines = ["```text", usage, "```", "", *paragraphs(command.help)]
    panels: dict[str, list[Any]] = defaultdict(list)
    for parameter in (*arguments, *options):
        default_panel = "Arguments" if parameter in arguments else "Options"
        panels[getattr(parameter, "rich_help_panel", None) or default_panel].append(parameter)
    for panel, members in panels.items():
        lines += ["", f"| {panel} | | default |", "|---|---|---|"]
        for each in members:
            meaning, shown = DEFAULT.fullmatch(cell(each.help or "")).groups()  # type: ignore[union-attr]
            lines.append(f"| {names(each)} | {meaning} | {shown or cell(default(each))} |")
    return lines


def argument_usage(argument: Any) -> str:
    dots = "..." if argument.nargs == -1 and not (argument.metavar or "").endswith("...") else ""
    return (
        f"{argument.metavar or argument.name.upper()}{dots}"
        if argument.required
        else f"[{argument.metavar}]{dots}"
    )


def names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join(f"`{option}{value}`" for option in (*parameter.opts, *parameter.secondary_opts))


def default(parameter: Any) -> str:
    """The default as `--help` shows it."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if (
        not parameter.show_default
        or value is None
        or isinstance(value, bool)
        or callable(value)
        or value == ()
    ):
        return "required" if parameter.required else ""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"`{getattr(value, 'value', value)}`"


def paragraphs(text: str) -> list[str]:
    """Help text as Markdown."""
    lines = []
    for paragraph in text.split("\n\n"):
        lines += [plain(paragraph.strip("\b\n ")), ""]
    return lines[:-1]


def first_paragraph(text: str) -> str:
    return text.partition("\n\n")[0]


def cell(text: str) -> str:
    return plain(text).replace("|", "\\|")


def plain(text: str) -> str:
    """Text with rich's markup as Markdown: bold words are what is typed."""
    text = Text.from_markup(re.sub(r"\[bold\](.*?)\[/(?:bold)?\]", r"`\1`", text)).plain
    return re.sub(r"\s+", " ", text).strip()


def defaults_page() -> str:
    """The settings of each kind of environment, and the registered names, as `amago-run list` prints them."""
    recipes: dict[str, Recipe] = {name: Recipe(env="", **settings) for name, settings in RECIPES.items()}
    recipes[QUICKSTART_NAME] = QUICKSTART
    lines = [
        "# Default settings",
        "",
        "`amago-run train ENV` chooses settings by the kind of ENV. `amago-run list recipes` prints them, and",
        "`amago-run check-env ENV` names the kind of an environment. Command-line options override them.",
        "",
        "| kind | environments |",
        "|---|---|",
        *(f"| {kind} | {cell(meaning)} |" for kind, meaning in KINDS.items()),
        "",
        "`continuous` is `vectors` with continuous actions; `quickstart` is `amago-run train` without ENV. An",
        "empty cell means the default.",
        "",
        f"| option | default | {' | '.join(recipes)} |",
        f"|---|---|{'---|' * len(recipes)}",
    ]
    for field in dataclasses.fields(Recipe):
        if field.name not in OPTIONS or field.name in ("env", "env_args"):
            continue
        values = [getattr(recipe, field.name) for recipe in recipes.values()]
        changed = ["" if value == field.default else cell(str(value)) for value in values]
        if any(changed):
            usual = "" if field.default in (None, dataclasses.MISSING) else cell(str(field.default))
            lines.append(f"| `{option_name(field.name)}` | {usual} | {' | '.join(changed)} |")
    lines += ["", "Gin settings (`--set`):", "", "| kind | settings |", "|---|---|"]
    for name, recipe in recipes.items():
        settings = ", ".join(f"`{key}={value!r}`" for key, value in recipe.gin.items())
        if settings:
            lines.append(f"| {name} | {settings} |")
    lines += ["", "## Registered names", "", "| `amago-run list …` | names |", "|---|---|"]
    for section, registered in NAMES.items():
        lines.append(f"| {section} | {', '.join(f'`{name}`' for name in registered())} |")
    return "\n".join(lines) + "\n"


PAGES = {"cli.md": cli_page, "defaults.md": defaults_page}

if __name__ == "__main__":
    for file_name, page in PAGES.items():
        (REFERENCE / file_name).write_text(page(), encoding="utf-8")
