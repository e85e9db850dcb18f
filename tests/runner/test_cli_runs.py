"""`amago-run` on runs of scripts and on runs that exist: eval, compare, --resume, --auto-resume, --overwrite."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import pytest
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.evaluate import rebuilt_experiment
from amago.experiment import Experiment
from amago.experiment.trusted import trusting

MakeExperiment = Callable[..., Experiment]

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "2", "--batch-size", "2", "--seed", "5"),
    *("--batches-per-epoch", "2", "--eval-episodes", "4", "--val-interval", "1", "--ckpt-interval", "1"),
]
CARTPOLE = ["CartPole-v1", "--env-arg", "max_episode_steps=20", "--timesteps-per-epoch", "40", *TINY]
HOLD = """
import sys
from pathlib import Path
from amago.experiment.run_folder import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
print("locked", flush=True)
sys.stdin.read()
"""


def amago_run(*arguments: str | Path, status: int = 0) -> str:
    """What the command prints, without frames and line breaks."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), "a traceback"
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def _gin_as_before() -> Iterator[None]:
    yield
    gin.clear_config()


@pytest.fixture
def scripts_run(make_experiment: MakeExperiment) -> Path:
    """The folder of a run of two epochs that a script trained."""
    experiment = make_experiment("runs", val_interval=1)
    experiment.start()
    experiment.learn()
    experiment.close()
    return experiment.run_dir


def test_a_run_of_a_script_is_evaluated_compared_and_resumed(
    scripts_run: Path, make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    shown = amago_run("eval", scripts_run, "--episodes", "6", "--trust", "tests")
    assert "run: memory, checkpoint latest" in shown
    assert "Average Total Return in memory" in shown
    other = make_experiment("others", epochs=1)
    other.start()
    other.learn()
    other.close()
    amago_run("compare", scripts_run, other.run_dir, "--out", tmp_path / "both.png")
    assert (tmp_path / "both.png").is_file()
    before = summary_of(scripts_run)
    resume = ["train", "--run-dir", scripts_run.parent, "--run-name", "run", "--resume", "--trust", "tests"]
    amago_run(*resume, "--epochs", "3", "--batches-per-epoch", "6")
    summary = summary_of(scripts_run)
    assert summary["run_id"] == before["run_id"]
    assert (summary["env_steps"], summary["gradient_steps"]) == (3 * 60, 2 * 4 + 6)
    assert summary.keys() == before.keys()
    said = amago_run(*resume, "--memory-size", "32", status=2)
    assert "trained by a script" in said


def test_the_summaries_of_scripts_and_of_the_command_have_the_same_keys(
    scripts_run: Path, tmp_path: Path
) -> None:
    amago_run("train", *CARTPOLE, "--run-dir", tmp_path, "--run-name", "commanded", "--epochs", "1")
    summary = summary_of(tmp_path / "commanded")
    assert summary.keys() == summary_of(scripts_run).keys()
    assert (summary["eval_episodes"], summary["status"], summary["env"]) == (4, "finished", "CartPole-v1")


def test_a_run_whose_environment_cannot_be_rebuilt_says_so(make_experiment: MakeExperiment) -> None:
    maker = make_experiment().make_train_env
    experiment = make_experiment(make_val_env=lambda: maker(), epochs=1)
    experiment.start()
    experiment.learn()
    experiment.close()
    said = amago_run("eval", experiment.run_dir, status=2)
    assert "make_val_env" in said
    assert "a lambda" in said


def test_auto_resume_starts_continues_and_accepts_a_finished_run(tmp_path: Path) -> None:
    command = ["train", *CARTPOLE, "--run-dir", tmp_path, "--run-name", "job", "--auto-resume"]
    amago_run(*command, "--epochs", "1")
    first = summary_of(tmp_path / "job")
    amago_run(*command, "--epochs", "2")
    second = summary_of(tmp_path / "job")
    assert second["run_id"] == first["run_id"]
    assert second["env_steps"] == 2 * first["env_steps"]
    assert second["wall_seconds"] > first["wall_seconds"]
    amago_run(*command, "--epochs", "2")
    third = summary_of(tmp_path / "job")
    assert (third["mean_return"], third["env_steps"]) == (second["mean_return"], second["env_steps"])
    said = amago_run(*command, "--overwrite", status=2)
    assert "give one of --resume, --auto-resume and --overwrite" in said


def test_a_run_in_use_is_neither_resumed_nor_replaced(tmp_path: Path) -> None:
    command = ["train", *CARTPOLE, "--run-dir", tmp_path, "--run-name", "busy"]
    amago_run(*command, "--epochs", "1")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "busy")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        before = contents(tmp_path / "busy")
        for option in ("--resume", "--auto-resume", "--overwrite"):
            said = amago_run(*command, option, "--epochs", "2", status=2)
            assert f"is in use by process {holder.pid} on" in said
        assert contents(tmp_path / "busy") == before
        holder.kill()
    amago_run(*command, "--resume", "--epochs", "2")
    assert summary_of(tmp_path / "busy")["gradient_steps"] == 4


def test_a_run_that_ends_without_an_update_fails(tmp_path: Path) -> None:
    """Episodes of 200 steps, written after 50: nothing is on disk after 5."""
    command = ["train", "Pendulum-v1", *TINY, "--timesteps-per-epoch", "5", "--epochs", "1"]
    with pytest.warns(UserWarning, match="Set traj_save_len to at most"):
        said = amago_run(*command, "--run-dir", tmp_path, status=1)
    assert "The run has ended without an update" in said
    assert summary_of(tmp_path / "Pendulum-v1")["gradient_steps"] == 0


def test_a_run_that_is_only_to_collect_succeeds(tmp_path: Path) -> None:
    amago_run("train", *CARTPOLE, "--batches-per-epoch", "0", "--epochs", "1", "--run-dir", tmp_path)
    assert summary_of(tmp_path / "CartPole-v1")["gradient_steps"] == 0


def test_an_evaluation_without_a_finished_episode_says_so_and_prints_no_empty_table(
    scripts_run: Path,
) -> None:
    """Validations of 5 steps, and episodes of 6."""
    with pytest.warns(UserWarning, match="no episode finished"):
        said = amago_run(
            *("eval", scripts_run, "--trust", "tests", "--episodes", "3"),
            *("--set", "Experiment.val_timesteps_per_epoch=5"),
        )
    assert "No episode was finished." in said
    assert "Metric" not in said


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ("Experiment.learning_rate=0.5", "--learning-rate"),
        ("Experiment.agent_type=@MultiTaskAgent", "--agent"),
        ("Experiment.resume=True", "--resume"),
        ("DiskTrajDataset.dset_max_size=5", "--buffer-size"),
        ("Agent.max_seq_len=3", "--max-seq-len"),
        ("FFTrajEncoder.max_seq_len=3", "--max-seq-len"),
    ],
)
def test_a_gin_setting_that_an_option_would_override_is_named(
    setting: str, option: str, tmp_path: Path
) -> None:
    said = amago_run("train", *CARTPOLE, "--run-dir", tmp_path, "--set", setting, status=2)
    assert f"give {option} instead of {setting.partition('=')[0]}" in said
    assert not (tmp_path / "CartPole-v1").exists()


def test_gin_settings_of_an_evaluation_win_over_those_of_the_run(scripts_run: Path) -> None:
    assignments = ["Experiment.sample_actions_val=False", "Experiment.parallel_actors=2"]
    with trusting("tests"), rebuilt_experiment(scripts_run, assignments=assignments) as experiment:
        assert (experiment.sample_actions_val, experiment.parallel_actors) == (False, 2)
    assignment = "Experiment.train_timesteps_per_epoch=5"
    said = amago_run("eval", scripts_run, "--trust", "tests", "--set", assignment, status=2)
    assert "Experiment.train_timesteps_per_epoch has no effect here" in said
