"""`amago-run list`: what can be named on the command line, from the catalog, the recipes and the registries."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from amago.agent import list_registered_agents
from amago.cli.options import OPTIONS, UsageProblem, option_name
from amago.cli.recipe import QUICKSTART, QUICKSTART_NAME, RECIPES, Recipe
from amago.envs.builtin.catalog import CATALOG, KINDS, CatalogEntry
from amago.envs.exploration import list_registered_explorations
from amago.envs.registry import did_you_mean
from amago.nets.traj_encoders import list_registered_traj_encoders
from amago.nets.tstep_encoders import list_registered_tstep_encoders

NAMES: dict[str, Callable[[], list[str]]] = {
    "agents": list_registered_agents,
    "tstep-encoders": list_registered_tstep_encoders,
    "traj-encoders": list_registered_traj_encoders,
    "explorations": list_registered_explorations,
}
SECTIONS = ("environments", "recipes", *NAMES)
_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold"}


def show_list(
    console: Console, what: str | None, *, module: str | None = None, markdown: bool = False
) -> None:
    """Prints one section, or all of them; `markdown` prints the environments as docs/environments.md has them.

    Args:
        console: where to print.
        what: the section; None for all of them.
        module: a module to import first, which registers classes.
        markdown: print a Markdown table.

    Raises:
        UsageProblem: there is no such section, or the module cannot be imported.
    """
    if module is not None:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageProblem(f"{module!r} cannot be imported: {error}", "MODULE") from error
    if what is not None and what not in SECTIONS:
        hint = did_you_mean(what, SECTIONS) or f" Choose one of {', '.join(SECTIONS)}."
        raise UsageProblem(f"there is no list of {what!r}.{hint}", "WHAT")
    if markdown:
        if what != "environments":
            raise UsageProblem("only the list of environments is printed as Markdown.", "--markdown")
        console.print(environments_as_markdown(), markup=False, highlight=False, soft_wrap=True)
        return
    for section in SECTIONS if what is None else (what,):
        if section == "environments":
            _show_environments(console)
        elif section == "recipes":
            console.print(_recipes_table(), "")
        else:
            console.print(f"[bold]{section}[/]  {', '.join(NAMES[section]())}", highlight=False)


def _show_environments(console: Console) -> None:
    table = Table("Environment", "kind", "extra", "installed", "episode", "", **_STYLE)
    for entry in CATALOG.values():
        installed = "yes" if entry.installed else "no"
        extra = entry.extra or ("by hand" if entry.install else "")
        table.add_row(_name(entry), entry.kind, extra, installed, _episode(entry), entry.description)
    console.print(table, "")
    kinds = Table.grid(padding=(0, 2))
    for kind, meaning in KINDS.items():
        kinds.add_row(kind, meaning)
    console.print(kinds, "")
    missing = {entry.install_command for entry in CATALOG.values() if not entry.installed}
    for command in sorted(missing):
        console.print(f"  {command}", highlight=False, markup=False)
    console.print(
        "Any Gymnasium id works too; MODULE:ID or MODULE:Class for environments of your own.\n",
        highlight=False,
    )


def environments_as_markdown() -> str:
    """The catalog as a Markdown table."""
    lines = ["| name | | kind | episode | ids | install | tested with |", "|---|---|---|---|---|---|---|"]
    for entry in CATALOG.values():
        ids = f"`{entry.id_prefix}…`, such as `{entry.example_id}`" if entry.id_prefix else ""
        install = (
            f"`amago-envs[{entry.extra}]`" if entry.extra else f"`{entry.install}`" if entry.install else ""
        )
        name = "" if entry.has_only_ids else f"`{entry.name}`"
        cells = (name, entry.description, entry.kind, _episode(entry), ids, install, entry.tested_with)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(entry: CatalogEntry) -> str:
    """The name, and the form of the ids."""
    if entry.has_only_ids or not entry.id_prefix:
        return entry.name
    return f"{entry.name}, {entry.id_prefix}..."


def _episode(entry: CatalogEntry) -> str:
    return "by id" if entry.episode_steps is None else f"{entry.episode_steps:,}"


def _recipes_table() -> Table:
    """Each recipe as the options that it changes, and the number of its gin settings."""
    table = Table("Kind", "default options", **_STYLE)
    recipes: dict[str, Recipe] = {name: Recipe(env="", **settings) for name, settings in RECIPES.items()}
    recipes[QUICKSTART_NAME] = QUICKSTART
    for name, recipe in recipes.items():
        options = [
            f"{option_name(field.name)} {getattr(recipe, field.name)}"
            for field in dataclasses.fields(Recipe)
            if field.name in OPTIONS
            and field.name != "env_args"
            and getattr(recipe, field.name) != field.default
        ]
        options += [f"--set {key}={value!r}" for key, value in recipe.gin.items()]
        table.add_row(name, Text(" ".join(options)))
    return table
