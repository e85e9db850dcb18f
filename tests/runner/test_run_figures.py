"""What is read from the folder of a run, finished or not, and which runs belong together."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.runner.run_folders import RETURN, make_run, write_status
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.report_page import render_report
from amago.cli.run_figures import Curve, by_environment, differences, group_runs, read_figures, spread_of


def test_an_unfinished_run_has_its_figures_so_far(tmp_path: Path) -> None:
    run = read_figures(make_run(tmp_path, "a", finished=False))
    assert run.state == "ended early"
    assert run.evaluation.env_steps == [0.0, 1600.0, 3200.0]
    assert run.final_return == 2.0
    assert run.success == pytest.approx([0.5, 0.6, 0.7])
    assert run.wall_seconds == 20.0
    assert [checkpoint.epoch for checkpoint in run.checkpoints] == [2]


def test_a_folder_in_which_nothing_was_logged_yet_can_be_read(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", finished=False)
    (folder / "metrics.jsonl").unlink()
    run = read_figures(folder)
    assert (run.evaluation.returns, run.final_return, run.env) == ([], None, "MetaFrozenLake (size=3)")


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"section": "val", "axes"')
    assert len(read_figures(folder).evaluation.returns) == 3


def test_a_checkpoint_that_is_deleted_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path, "a", finished=False)
    states = folder / "ckpts" / "training_states"
    for epoch in (0, 1):
        shutil.copytree(states / "a_epoch_2", states / f"a_epoch_{epoch}")
    iterdir, stat = Path.iterdir, Path.stat

    def deleted_before(path: Path) -> Iterator[Path]:
        if path.name == "a_epoch_0":
            shutil.rmtree(path)
        return iterdir(path)

    def deleted_between(path: Path, **options: Any) -> os.stat_result:
        if path.parent.name == "a_epoch_1":
            shutil.rmtree(path.parent)
        return stat(path, **options)

    monkeypatch.setattr(Path, "iterdir", deleted_before)
    monkeypatch.setattr(Path, "stat", deleted_between)
    assert [checkpoint.epoch for checkpoint in read_figures(folder).checkpoints] == [2]
    assert not (states / "a_epoch_0").exists()
    assert not (states / "a_epoch_1").exists()


def test_the_summary_of_a_run_that_went_on_is_an_old_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    assert (read_figures(folder).state, read_figures(folder).final_return) == ("finished", 3.0)
    line = {"section": "val", "axes": {"total_frames": 6400, "gradient_steps": 400}, "metrics": {RETURN: 9.0}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, "time": 1e9}) + "\n")
    run = read_figures(folder)
    assert (run.state, run.final_return, run.env_steps) == ("ended early", 9.0, 6400)


@pytest.mark.parametrize("status", ["finished", "stopped"])
def test_a_run_stays_as_its_learner_ended_it_when_a_collector_goes_on(tmp_path: Path, status: str) -> None:
    folder = make_run(tmp_path, "a")
    (folder / "collectors").mkdir()
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "status": status}))
    axes = {"total_frames": 6400, "Epoch": 9, "gradient_steps": 0}
    line = {"section": "train", "axes": axes, "metrics": {RETURN: 9.0}, "time": 1e9}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    run = read_figures(folder)
    assert (run.state, run.env_steps, run.final_return) == (status, 4800, 3.0)
    assert CliRunner().invoke(app, ["watch", "a", "--run-dir", str(tmp_path)]).exit_code == 0
    axes["gradient_steps"] = 400  # the learner went on too
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, "section": "learning"}) + "\n")
    assert read_figures(folder).state == "ended early"


def test_the_evaluation_of_a_stopped_run_stays_where_it_was_made(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    summary = json.loads((folder / "summary.json").read_text())
    changes = {"status": "stopped", "mean_return": 2.0, "eval_env_steps": 3200}
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    run = read_figures(folder)
    assert run.evaluation.env_steps == [0.0, 1600.0, 3200.0]
    assert (run.state, run.final_return, run.is_evaluated) == ("stopped", 2.0, False)


@pytest.mark.parametrize(("tested_at", "source"), [(4800, "test"), (3200, "last validation")])
def test_the_mean_return_is_that_of_the_test_where_there_is_one(
    tmp_path: Path, tested_at: int, source: str
) -> None:
    folder = make_run(tmp_path, "a")
    summary = json.loads((folder / "summary.json").read_text())
    # As a run of a script, whose summary has the last evaluation during training.
    changes = {"mean_return": 2.0, "eval_env_steps": 3200}
    (folder / "summary.json").write_text(json.dumps({**summary, **changes}))
    line = {"section": "test", "axes": {"total_frames": tested_at, "Epoch": 2, "gradient_steps": 300}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**line, "metrics": {RETURN: 1.5}, "time": 1e9}) + "\n")
    run = read_figures(folder)
    assert (run.return_source, run.final_return) == (source, 1.5 if source == "test" else 2.0)
    shown = CliRunner().invoke(app, ["compare", str(folder), "--out", str(tmp_path / "a.png")]).output
    assert f"Return from {source}" in " ".join(shown.split())
    shown = CliRunner().invoke(app, ["watch", str(folder)]).output
    assert f"{'test return 1.500' if source == 'test' else 'last validation 2.000'}" in shown
    assert f"<span>{source}</span></td>" in render_report([run])


def test_runs_without_environment_steps_have_curves_over_updates() -> None:
    curve = Curve()
    for updates, value in ((0, 1.0), (100, 2.0), (200, 3.0), (100, 4.0)):
        curve.add(0.0, value, updates)
    assert curve.x("gradient_steps") == [0, 100]
    assert curve.returns == [1.0, 4.0]


def test_processes_are_told_dead_or_alive(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", finished=False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_status(folder, ended.pid)
    assert read_figures(folder).state == "ended early"
    write_status(folder, 1, role="learner", host="elsewhere")
    assert [(process.name, process.alive) for process in read_figures(folder).processes] == [
        ("both-0", False),
        ("learner-0", True),
    ]
    write_status(folder, 1, role="learner", host="elsewhere", time=time.time() - 3600)
    assert read_figures(folder).state == "ended early"
    write_status(folder, os.getpid())
    (folder / "status" / "collector-0.json").touch()  # as a power failure leaves it
    assert read_figures(folder).state == "running"


def test_a_running_run_does_not_count_as_finished(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    write_status(folder, os.getpid())
    assert read_figures(folder).state == "running"


def test_runs_that_differ_in_their_seed_only_form_a_group(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, f"lake-{seed}", seed=seed, traj_encoder="rnn") for seed in (0, 1)]
    folders += [make_run(tmp_path / "elsewhere", "lake-2", seed=2, traj_encoder="rnn")]
    folders += [make_run(tmp_path, "other", traj_encoder="ff"), make_run(tmp_path, "pole", env="CartPole-v1")]
    groups = group_runs([read_figures(folder) for folder in folders])
    assert [group.name for group in groups] == ["lake (3 seeds)", "other", "pole"]
    assert differences(groups[:2]) == {"traj_encoder": ["rnn", "ff"]}
    assert {name: len(members) for name, members in by_environment(groups).items()} == {
        "MetaFrozenLake (size=3)": 2,
        "CartPole-v1 (size=3)": 1,
    }
    labelled = group_runs([read_figures(folders[0], "x"), read_figures(folders[1], "y")], by_label=True)
    assert [group.name for group in labelled] == ["x", "y"]


def test_curves_are_averaged_where_all_of_them_are_known() -> None:
    first = Curve(env_steps=[0, 10, 20], gradient_steps=[0, 0, 0], returns=[0.0, 1.0, 2.0])
    second = Curve(env_steps=[5, 15], gradient_steps=[0, 0], returns=[2.5, 3.5])
    spread = spread_of([first, second, Curve()], "env_steps")
    assert spread.x == [5, 10, 15]
    assert spread.mean == [1.5, 2.0, 2.5]
    assert (spread.low, spread.high) == ([0.5, 1.0, 1.5], [2.5, 3.0, 3.5])


def test_compare_takes_unfinished_runs_averages_seeds_and_separates_environments(tmp_path: Path) -> None:
    make_run(tmp_path, "lake-0", seed=0)
    make_run(tmp_path, "lake-1", seed=1, evaluations=(0.5, 1.0, 4.0))
    make_run(tmp_path, "pole", env="CartPole-v1", finished=False, attempts=False, evaluations=(9.0,))
    runs = ["lake-0", "lake-1", "pole", "--run-dir", str(tmp_path), "--out", str(tmp_path / "all.png")]
    result = CliRunner().invoke(app, ["compare", *runs], env={"COLUMNS": "100"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    lake, pole = result.output.split("CartPole-v1 (size=3)")
    assert "lake (2 seeds)" in lake
    assert "4.000 [3.000, 5.000]" in lake
    assert "Success of attempt 3" in lake
    assert "ended early" in pole
    assert "9.000" in pole
    with Image.open(tmp_path / "all.png") as image:
        assert image.size == (1500, 1260)  # a row of two panels for each environment


def test_epochs_end_once_however_often_their_metrics_are_logged(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    text = (folder / "metrics.jsonl").read_text()
    lines = text.splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line + line for line in lines) + text)
    assert len(read_figures(folder).epoch_ends) == 3
    assert read_figures(folder).speed("env_steps").returns == [160.0, 160.0]


def test_metrics_of_collectors_do_not_hide_the_updates_of_the_learner(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    lines = []
    for text in (folder / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        if line["section"] in ("train", "dataset"):
            line["axes"]["gradient_steps"] = 0
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_figures(folder)
    assert run.gradient_steps == 300
    assert run.speed("gradient_steps").returns == [10.0, 10.0]
