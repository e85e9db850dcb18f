"""The `amago-run` command: train an agent on an environment named on the command line, evaluate it, draw it.

`app` declares the commands and their options; `environments` turns a name into something that makes
environments; `recipes` holds the settings that a run starts from; `options` reads `key=value` arguments and
`bindings` hands gin its share; `train` and `evaluate` do the work; `progress`, `report` and `plots` show it.
"""

from __future__ import annotations

import os

__all__ = ["main"]


def main() -> None:
    """Entry point of `amago-run`: reads the command line and exits with its status."""
    # Threads that wait in a busy loop slow small networks down tenfold as soon as the cores have other work.
    # OpenMP reads this once, when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from amago.cli.app import app

    app(prog_name="amago-run")
