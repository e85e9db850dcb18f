"""Trackers: metrics.jsonl, Weights & Biases and TensorBoard."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb

from amago.experiment import Experiment
from amago.tracking import JsonlTracker, MetricLogger, Tracker, WandbTracker


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_holds_section_axes_metrics_and_time(tmp_path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log({"Average": 0.5}, section="val", axes={"Epoch": 3.0})
    (line,) = lines(path)
    assert line.pop("time") > 1.6e9
    assert line == {"section": "val", "axes": {"Epoch": 3}, "metrics": {"Average": 0.5}}
    tracker.close()


def test_numbers_of_all_types_are_logged_and_nan_becomes_null(tmp_path) -> None:
    path = tmp_path / "m.jsonl"
    logger = MetricLogger([JsonlTracker(path)])
    metrics = {"a": torch.tensor(1.5), "b": np.float32(2.5), "c": np.int64(3), "d": float("nan")}
    logger.log(metrics, section="train-update", axes={})
    # Read before the tracker is closed: lines are flushed immediately.
    assert lines(path)[0]["metrics"] == {"a": 1.5, "b": 2.5, "c": 3, "d": None}
    logger.close()


@pytest.mark.parametrize("value", ["high", torch.zeros(2), None])
def test_a_metric_that_is_not_a_number_is_an_error_that_names_it(value) -> None:
    with pytest.raises(TypeError, match="'score'"):
        MetricLogger().log({"score": value}, section="val", axes={})


@pytest.mark.parametrize("torn", ['{"section": "va', "x" * 10_000])
def test_an_incomplete_last_line_is_removed(tmp_path, torn) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlTracker(path)
    first.log({"x": 1.0}, section="val", axes={})
    first.close()
    with path.open("a") as file:
        file.write(torn)
    second = JsonlTracker(path)
    second.log({"x": 2.0}, section="val", axes={})
    second.close()
    assert [line["metrics"] for line in lines(path)] == [{"x": 1}, {"x": 2}]


def test_metrics_are_logged_to_every_tracker(tmp_path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    tracker: Tracker = MetricLogger([JsonlTracker(path) for path in paths])
    tracker.log({"x": torch.tensor(1.0)}, section="test", axes={"Epoch": 0})
    tracker.close()
    tracker.close()
    assert [lines(path)[0]["metrics"] for path in paths] == [{"x": 1}, {"x": 1}]


def test_wandb_logs_offline_and_continues_a_run(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("AMAGO_WANDB_PROJECT", "from-the-environment")
    tracker = WandbTracker(
        name="run", group="group", config={"Agent.gamma": 0.9}, log_dir=tmp_path / "wandb_logs"
    )
    tracker.log({"Average": 0.5}, section="val", axes={"Epoch": 3.0})
    run_id = tracker.run_id
    assert tracker._run.project == "from-the-environment"
    tracker.close()
    tracker.close()
    wandb.teardown()  # a process of wandb's own writes the file; when it has ended, the file is complete
    files = list((tmp_path / "wandb_logs").rglob(f"*{run_id}.wandb"))
    assert files
    assert b"val/Average" in files[0].read_bytes()
    again = WandbTracker(name="run", log_dir=tmp_path / "wandb_logs", run_id=run_id)
    assert again.run_id == run_id
    again.close()


def test_importing_trackers_does_not_import_wandb_or_tensorboard() -> None:
    code = "import sys, amago.tracking; sys.exit(bool({'wandb', 'tensorboard'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_wandb_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install 'wandb"):
        WandbTracker()


def test_a_missing_tensorboard_says_what_to_install_before_anything_is_written(
    make_experiment: Callable[..., Experiment], monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    experiment = make_experiment(log_to_tensorboard=True)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        experiment.start()
    assert not experiment.run_dir.exists()
