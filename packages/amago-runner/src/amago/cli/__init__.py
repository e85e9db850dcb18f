"""The `amago-run` command: train an agent on an environment named on the command line, evaluate it, draw it.

`app` declares the commands and their options; `environments` turns a name into something that makes
environments; `recipes` holds the settings that a run starts from; `options` reads `key=value` arguments and
`bindings` hands gin its share; `train` and `evaluate` do the work; `progress`, `report` and `plots` show it.
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of `amago-run`: reads the command line and exits with its status."""
    from amago.cli.app import app

    app(prog_name="amago-run")
