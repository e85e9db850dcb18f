"""What a run shows while it trains."""

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from amago.cli.progress import TrainingProgress
from amago.cli.report import RETURN_METRIC


def play(progress: TrainingProgress, epochs: int) -> None:
    """Calls the hooks as a run does that has one rollout and three updates an epoch."""
    experiment: Any = SimpleNamespace(counters=SimpleNamespace(env_steps=0, gradient_steps=0), epoch=0)
    for epoch in range(epochs):
        experiment.epoch = epoch
        progress.on_epoch_start(experiment, epoch)
        if epoch == 0:
            progress.on_rollout_start(experiment, "val", None)
            progress.on_rollout_end(experiment, "val", {RETURN_METRIC: 0.75})
        progress.on_rollout_start(experiment, "train", 16)
        experiment.counters.env_steps += 16
        progress.on_rollout_step(experiment, "train", 16)
        progress.on_rollout_end(experiment, "train", {RETURN_METRIC: 0.25})
        progress.on_learning_start(experiment, 3)
        for _ in range(3):
            experiment.counters.gradient_steps += 1
            progress.on_batch(experiment, True)
        progress.on_learning_end(experiment)
        progress.on_epoch_end(experiment, epoch)
    progress.on_end(experiment)
    progress.close()


@pytest.mark.parametrize("epochs", [1, 7, 40, 1000])
def test_without_a_terminal_about_twenty_lines_are_printed(epochs: int) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    progress = TrainingProgress(console, epochs)
    play(progress, epochs)
    lines = console.export_text().splitlines()
    assert 1 <= len(lines) <= 22
    assert lines[-1].startswith(f"epoch {epochs}/{epochs}  {16 * epochs:,} steps  {3 * epochs:,} updates")
    assert all("return 0.75" in line for line in lines)
    assert 0.0 < progress.wall_seconds < 5.0


def test_a_terminal_shows_a_progress_bar_on_one_line() -> None:
    file = io.StringIO()
    play(TrainingProgress(Console(width=80, force_terminal=True, file=file), 40), 40)
    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue()).strip().rpartition("epoch")[2]
    assert len("epoch" + last) <= 80
    for part in ("40/40", "100%", "steps/s", "updates/s", "return 0.75"):
        assert part in last
