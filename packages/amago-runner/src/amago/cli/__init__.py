"""The `amago-run` command: train an agent on an environment, evaluate it, compare runs, handle their files.

`app.py` declares the commands; `recipe.py` the settings of a run, from which `options.py` generates the options;
`build.py` turns a recipe into an Experiment.
"""

from __future__ import annotations

import io
import os
import sys

__all__ = ["flush_lines", "main"]


def flush_lines() -> None:
    """Lets each printed line reach a file or pipe at once: jobs are followed there, and may be killed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def main() -> None:
    """Entry point of `amago-run`: parses the command line and exits with its status."""
    flush_lines()
    # OpenMP threads that spin while they wait slow down small networks tenfold when other processes use the cores.
    # OpenMP reads this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Environments and gin files may import modules of the working folder, as with `python -m`.
    sys.path.insert(0, os.getcwd())
    from amago.cli.app import app

    app(prog_name="amago-run")
