"""`amago-run export`: a run's policy as a program that needs nothing but torch."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from amago.cli.options import UsageProblem
from amago.policy import Policy


def export_run(folder: Path, out: Path, checkpoint: str, console: Console) -> None:
    """Exports the policy of the run in `folder` to the .pt2 file `out`, and its description beside it.

    Raises:
        UsageProblem: there is no such checkpoint, or the policy cannot be built or exported.
    """
    try:
        described = Policy.load(folder, checkpoint).export(out)
    except (ValueError, FileNotFoundError) as error:
        raise UsageProblem(f"{error}.", "export") from error
    console.print(f"Program      {out}\nDescription  {described}", highlight=False)
