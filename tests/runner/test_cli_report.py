"""Summaries, tables and pictures of finished runs."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from amago.cli.plots import draw_runs, read_figures
from amago.cli.report import RETURN_METRIC, Summary, mean_return, show_summary, success_by_attempt

LAKE_METRICS = {
    RETURN_METRIC: 2.25,
    "Average Total Return in MetaFrozenLake": 2.25,
    **{
        f"Average Episode {attempt} Success in MetaFrozenLake": rate
        for attempt, rate in enumerate([0.5, 0.75, 1.0])
    },
}


@pytest.fixture
def finished(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of a finished run."""

    def make(name: str, traj_encoder: str = "transformer", metrics: dict[str, float] | None = None) -> Path:
        metrics = LAKE_METRICS if metrics is None else metrics
        folder = tmp_path / name
        folder.mkdir()
        lines = []
        for frames in (0, 1600, 3200):
            for section in ("val", "train", "dataset"):
                record = {
                    "section": section,
                    "axes": {"total_frames": frames},
                    "metrics": {RETURN_METRIC: frames / 1600} if section != "dataset" else {"size": 1},
                }
                lines.append(json.dumps(record))
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        Summary(
            run=name,
            env="MetaFrozenLake",
            env_args={"size": 3},
            agent="agent",
            tstep_encoder="ff",
            traj_encoder=traj_encoder,
            seed=3,
            mean_return=mean_return(metrics),
            success_by_attempt=success_by_attempt(metrics),
            eval_episodes=1000,
            env_steps=4800,
            gradient_steps=300,
            wall_seconds=12.5,
            metrics=metrics,
            versions={"torch": "2.6.0"},
        ).save(folder)
        return folder

    return make


def width_of(path: Path) -> int:
    """The width of a picture that is not of one colour."""
    with Image.open(path) as image:
        width, height = image.size
        colours = image.convert("RGB").getcolors(maxcolors=width * height)
        assert colours is not None
        assert len(colours) > 50
        return width


def test_success_by_attempt_is_sorted_and_averaged_over_environment_names() -> None:
    rates = {f"Average Episode {attempt} Success in Lake": attempt / 20 for attempt in (10, 2, 0, 1)}
    assert success_by_attempt(rates) == [0.0, 0.05, 0.1, 0.5]
    metrics = {"Average Episode 0 Success in A": 0.2, "test/Average Episode 0 Success in B, hard": 0.6}
    assert success_by_attempt(metrics) == pytest.approx([0.4])


def test_metrics_without_attempts_or_episodes_have_no_success_or_return() -> None:
    assert success_by_attempt({"Average Success in TMaze": 0.9, RETURN_METRIC: 1.0}) == []
    assert mean_return({}) is None


def test_a_summary_file_holds_the_promised_figures(finished: Callable[..., Path]) -> None:
    folder = finished("run")
    content = json.loads((folder / "summary.json").read_text())
    assert content["mean_return"] == 2.25
    assert content["success_by_attempt"] == [0.5, 0.75, 1.0]
    assert (content["env_steps"], content["gradient_steps"]) == (4800, 300)
    assert (content["wall_seconds"], content["seed"], content["env"]) == (12.5, 3, "MetaFrozenLake")
    assert content["versions"]["torch"]
    assert Summary.load(folder) == Summary(**content)


def test_the_final_table_shows_each_attempt_within_80_columns(finished: Callable[..., Path]) -> None:
    folder = finished("run")
    console = Console(width=80, record=True, file=io.StringIO())
    show_summary(console, Summary.load(folder), folder.relative_to(folder.parent), Path("run/curve.png"))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    for attempt, rate in [("1", "50.0%"), ("2", "75.0%"), ("3", "100.0%")]:
        assert any(line.split()[1:3] == [attempt, rate] for line in lines)


def test_the_learning_curve_ends_with_the_final_figures(finished: Callable[..., Path]) -> None:
    folder = finished("run")
    evaluation = read_figures(folder).evaluation
    assert evaluation.env_steps == [0.0, 1600.0, 3200.0, 4800.0]
    assert evaluation.returns == [0.0, 1.0, 2.0, 2.25]


def test_epochs_that_a_resumed_run_repeats_are_drawn_once(finished: Callable[..., Path]) -> None:
    folder = finished("run")
    repeated = {"section": "val", "axes": {"total_frames": 1600}, "metrics": {RETURN_METRIC: 9.0}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(repeated) + "\n")
    evaluation = read_figures(folder).evaluation
    assert evaluation.env_steps == [0.0, 1600.0, 4800.0]
    assert evaluation.returns == [0.0, 9.0, 2.25]


def test_pictures_have_a_second_panel_if_the_environment_has_attempts(
    finished: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [finished("memory"), finished("control", traj_encoder="ff")]
    draw_runs([read_figures(folder) for folder in folders], tmp_path / "docs" / "both.png")
    assert width_of(tmp_path / "docs" / "both.png") >= 1200
    draw_runs([read_figures(finished("plain", metrics={RETURN_METRIC: 431.0}))], tmp_path / "plain.png")
    assert 800 <= width_of(tmp_path / "plain.png") < 1200
