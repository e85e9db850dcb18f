"""What a run shows while it trains, from Python and from the command line alike."""

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from amago.experiment.progress import ProgressDisplay, speed_text
from amago.experiment.summary import RETURN_METRIC


def play(display: ProgressDisplay, epochs: int) -> None:
    """Calls the hooks as a run does that evaluates once, and has one rollout and three updates an epoch."""
    counters = SimpleNamespace(env_steps=0, gradient_steps=0, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=epochs, start_learning_at_epoch=0)
    for epoch in range(epochs):
        experiment.epoch = epoch
        display.on_epoch_start(experiment, epoch)
        if epoch == 0:
            display.on_rollout_start(experiment, "val", None)
            display.on_rollout_end(experiment, "val", {RETURN_METRIC: 0.75})
        display.on_rollout_start(experiment, "train", 16)
        counters.env_steps += 16
        display.on_rollout_step(experiment, "train", 16)
        display.on_rollout_end(experiment, "train", {RETURN_METRIC: 0.25})
        display.on_learning_start(experiment, 3)
        for _ in range(3):
            counters.gradient_steps += 1
            display.on_batch(experiment, True)
        display.on_learning_end(experiment)
        display.on_epoch_end(experiment, epoch)
    display.on_end(experiment)
    display.close()


def lines_of(epochs: int) -> list[str]:
    console = Console(width=80, record=True, file=io.StringIO())
    play(ProgressDisplay(console), epochs)
    return console.export_text().splitlines()


def screen_of(epochs: int) -> str:
    """What the last refresh of the bars shows, without colours."""
    file = io.StringIO()
    play(ProgressDisplay(Console(width=80, force_terminal=True, file=file)), epochs)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    return shown[shown.rindex(f"epoch {epochs}/{epochs}") :]


@pytest.mark.parametrize("epochs", [1, 7, 40, 1000])
def test_without_a_terminal_about_twenty_lines_are_printed(epochs: int) -> None:
    lines = lines_of(epochs)
    assert 1 <= len(lines) <= 22
    assert lines[-1].startswith(f"epoch {epochs}/{epochs}  {16 * epochs:,} steps  {3 * epochs:,} updates")
    assert all("steps/s" in line and "updates/s" in line for line in lines)


def test_an_evaluation_of_an_earlier_epoch_is_marked_as_such() -> None:
    lines = lines_of(3)
    assert "  return 0.75  train return 0.25" in lines[0]
    assert "  return 0.75 (epoch 1)  train return 0.25" in lines[1]
    assert "return 0.75 (epoch 1)" in screen_of(3)


def test_the_time_left_is_shown_until_the_last_epoch() -> None:
    lines = lines_of(5)
    assert all(re.search(r"\d+ s, about \d+ s left$", line) for line in lines[:-1])
    assert "left" not in lines[-1]


def test_the_duration_is_estimated_in_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("amago.experiment.progress.time.perf_counter", lambda: clock)
    console = Console(width=80, record=True, file=io.StringIO())
    display = ProgressDisplay(console)
    counters = SimpleNamespace(env_steps=0, gradient_steps=0, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=10, start_learning_at_epoch=0)
    display.on_epoch_start(experiment, 0)
    clock = 10.0  # of collecting
    display.on_learning_start(experiment, 20)
    for _ in range(20):
        clock += 1.0
        display.on_batch(experiment, True)
    # An epoch takes 10 s and 20 batches of 1 s; 13 s of ten such epochs are over.
    assert console.export_text() == "about 5 min expected\n"


def test_the_first_estimate_leaves_out_the_first_counts_of_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    monkeypatch.setattr("amago.experiment.progress.time.perf_counter", lambda: clock)
    console = Console(width=80, record=True, file=io.StringIO())
    display = ProgressDisplay(console)
    counters = SimpleNamespace(env_steps=0, gradient_steps=0, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=10, start_learning_at_epoch=0)
    display.on_epoch_start(experiment, 0)
    display.on_rollout_start(experiment, "train", 100)
    for seconds in (500.0, 4.0, 4.0):  # in the first step a kernel is compiled
        clock += seconds
        display.on_rollout_step(experiment, "train", 1)
    display.on_rollout_end(experiment, "train", {})
    display.on_learning_start(experiment, 20)
    for seconds in (300.0, *[1.0] * 19):
        clock += seconds
        display.on_batch(experiment, True)
    display.on_learning_end(experiment)
    display.on_epoch_end(experiment, 0)
    first, line = console.export_text().splitlines()
    # An epoch takes 8 s and 20 batches of 1 s; 11 s of ten such epochs are over.
    assert first == "about 4 min expected"
    assert line.endswith("about 4 min left")


def test_speeds_below_10_have_two_digits_and_columns_their_order() -> None:
    assert [speed_text(speed) for speed in (0.314, 4.26, 9.96, 1234.5)] == ["0.31", "4.3", "10", "1,234"]
    console = Console(width=80, record=True, file=io.StringIO())
    display = ProgressDisplay(console)
    display._speeds = {"updates/s": 0.314, "steps/s": 20.0}  # a resumed run may learn first
    counters = SimpleNamespace(env_steps=16, gradient_steps=3, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=1, start_learning_at_epoch=0)
    display.on_epoch_start(experiment, 0)
    display.on_epoch_end(experiment, 0)
    assert "20 steps/s  0.31 updates/s" in console.export_text()


def test_an_epoch_of_a_learning_run_without_updates_says_so() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    display = ProgressDisplay(console)
    counters = SimpleNamespace(env_steps=16, gradient_steps=0, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=2, start_learning_at_epoch=0)
    display.on_epoch_start(experiment, 0)
    display.on_epoch_end(experiment, 0)
    assert "0 updates (none in this epoch)" in console.export_text()


def test_a_terminal_shows_bars_of_the_run_and_of_the_phase_within_the_epoch() -> None:
    run, phase = screen_of(40).strip().splitlines()[:2]
    assert max(len(run), len(phase)) <= 80
    for part in ("40/40", "100%", "left", "return 0.75"):
        assert part in run
    for part in ("100%", "steps/s", "updates/s"):
        assert part in phase


def test_the_phase_within_an_epoch_advances_with_its_batches() -> None:
    file = io.StringIO()
    display = ProgressDisplay(Console(width=80, force_terminal=True, file=file))
    counters = SimpleNamespace(env_steps=0, gradient_steps=0, skipped_updates=0)
    experiment: Any = SimpleNamespace(counters=counters, epoch=0, epochs=2, start_learning_at_epoch=0)
    display.on_epoch_start(experiment, 0)
    display.on_learning_start(experiment, 4)
    display.on_batch(experiment, True)
    display.close()
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    assert re.search(r"learning\s.*25%", shown)
