"""`amago-run` end to end on small budgets: train, resume, eval, compare."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.cli.build import bind_gin, build_experiment, plan_run
from amago.cli.environments import EnvMaker
from amago.experiment import Experiment
from amago.experiment.run_json import read_run

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "4", "--batch-size", "4"),
    *("--timesteps-per-epoch", "60", "--batches-per-epoch", "3", "--eval-episodes", "8"),
    *("--val-interval", "1", "--seed", "5"),
]
BLIND = ["--set", "FFTstepEncoder.hide_rl2s=True"]
LIMIT = ["--env-arg", "max_episode_steps=40"]


def amago_run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str | Path) -> str:
    """The error message, without frames and line breaks."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.fixture(autouse=True)
def _gin_as_before() -> Any:
    """Leaves gin empty and unlocked."""
    yield
    gin.clear_config()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A quickstart run with three attempts, and its output."""
    runs = tmp_path_factory.mktemp("runs")
    settings = ["--env-arg", "k_episodes=3", "--epochs", "2", "--set", "Agent.tau=0.25"]
    result = amago_run("train", "--run-dir", runs, *TINY, *settings, "--set", "Experiment.grad_clip=0.5")
    return runs / "quickstart", result


def test_a_run_without_an_environment_is_the_quickstart(lake: tuple[Path, Result]) -> None:
    summary = read_json(lake[0] / "summary.json")
    assert summary["run"] == "quickstart"
    assert (summary["env"], summary["env_args"]) == ("MetaFrozenLake", {"size": 3, "k_episodes": 3})
    assert summary["env_steps"] == 2 * 60 * 4
    assert summary["gradient_steps"] == 2 * 3
    assert summary["seed"] == 5
    assert 0 < summary["wall_seconds"] < 60
    assert len(summary["success_by_attempt"]) == 3
    assert summary["mean_return"] == pytest.approx(sum(summary["success_by_attempt"]))


def test_the_run_prints_its_progress_and_a_table_and_draws_the_learning_curve(
    lake: tuple[Path, Result],
) -> None:
    folder, result = lake
    lines = result.output.splitlines()
    assert any("Attempt" in line and "Success" in line for line in lines)
    assert sum(line.startswith("epoch ") for line in lines) == 2
    with Image.open(folder / "learning_curve.png") as image:
        assert image.format == "PNG"
        assert image.size[0] >= 1200


def test_run_json_contains_the_settings_of_the_command(lake: tuple[Path, Result]) -> None:
    record = read_run(lake[0])
    assert record.unwritable == {}
    assert record.gin["amago.agent.Agent.tau"] == 0.25
    arguments = record.experiment_arguments()
    assert arguments["make_train_env"] == EnvMaker(name="MetaFrozenLake", args={"size": 3, "k_episodes": 3})
    assert arguments["grad_clip"] == 0.5


def test_evaluating_the_run_repeats_its_final_figures(lake: tuple[Path, Result]) -> None:
    folder, _ = lake
    before = sorted(path.name for path in folder.iterdir())
    result = amago_run("eval", "quickstart", "--run-dir", folder.parent)
    summary = read_json(folder / "summary.json")
    assert f"Mean return  {summary['mean_return']:.3f} over 8 fresh episodes" in result.output
    assert sorted(path.name for path in folder.iterdir()) == before


def test_evaluation_takes_other_episodes_and_an_earlier_checkpoint(lake: tuple[Path, Result]) -> None:
    result = amago_run("eval", lake[0], "--episodes", "12", "--seed", "1", "--checkpoint", "0")
    assert "over 12 fresh episodes" in result.output
    assert "checkpoint 0" in result.output
    assert "epochs with a checkpoint: 0, 1." in refused("eval", lake[0], "--checkpoint", "7")


def test_later_settings_override_files_and_options(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gin", tmp_path / "second.gin"
    first.write_text("Agent.tau = 0.1\nAgent.gamma = 0.5\nTformerTrajEncoder.d_model = 24\n")
    second.write_text("Agent.tau = 0.2\n")
    arguments = ["--gin", first, "--gin", second, "--set", "Agent.gamma=0.75", "--epochs", "1"]
    amago_run("train", "--run-dir", tmp_path, *TINY, *arguments)
    bound = read_json(tmp_path / "quickstart" / "run.json")["gin"]
    assert (bound["amago.agent.Agent.tau"], bound["amago.agent.Agent.gamma"]) == (0.2, 0.75)
    weights = torch.load(tmp_path / "quickstart" / "ckpts" / "latest" / "policy.pt", weights_only=True)
    widths = {tensor.shape[-1] for name, tensor in weights.items() if name.startswith("traj_encoder")}
    assert 24 in widths
    assert 16 not in widths


def test_a_resumed_run_continues_with_its_own_settings(tmp_path: Path) -> None:
    run = ["--run-dir", tmp_path, "--run-name", "run"]
    amago_run("train", *run, "CartPole-v1", *LIMIT, *TINY, "--epochs", "1", "--set", "Agent.tau=0.25")
    before = read_json(tmp_path / "run" / "run.json")
    amago_run("train", *run, "--resume", "--epochs", "3")
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["env"] == "CartPole-v1"
    assert (summary["env_steps"], summary["gradient_steps"]) == (3 * 60 * 4, 3 * 3)
    assert read_json(tmp_path / "run" / "run.json")["gin"] == before["gin"]
    for changed in (["--memory-size", "32"], ["Pendulum-v1"]):
        said = refused("train", *run, "--resume", "--epochs", "4", *changed)
        assert "cannot change" in said
    assert "has finished its 3 epochs" in refused("train", *run, "--resume")


def test_the_learning_rate_falls_to_its_end_and_continues_when_resumed(tmp_path: Path) -> None:
    settings = {"epochs": 2, "batches_per_epoch": 60, "batch_size": 2, "actors": 2, "timesteps_per_epoch": 60}
    plan = plan_run({"env": "CartPole-v1", "env_args": {"max_episode_steps": 30}, **settings})
    rates = []
    for epochs, resume in ((1, False), (2, True)):
        bind_gin(plan.gin)
        experiment = build_experiment(plan, tmp_path / "run", resume=resume)
        experiment.epochs = epochs
        experiment.start()
        rates.append(experiment.lr_schedule.get_last_lr()[0])
        experiment.learn()
        rates.append(experiment.lr_schedule.get_last_lr()[0])
        experiment.close()
    # 60 and 120 of 120 updates, of which 100 are the warm-up.
    highest, end = plan.recipe.learning_rate, plan.recipe.lr_end
    assert rates[1] == rates[2] == pytest.approx(highest * 0.61 * (1 + end) / 2)
    assert rates[3] == pytest.approx(highest * end)


class Switches(gymnasium.Env[np.ndarray, np.ndarray]):
    """Rewards for each of three bits that is set; ten steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.MultiBinary(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), float(np.sum(action)), False, False, {}


class Camera(gymnasium.Env[Any, int]):
    """An image, joints and an instruction; three steps."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "joints": gymnasium.spaces.Box(-1.0, 1.0, (2,)),
            "instruction": gymnasium.spaces.Box(10, 40, (5,), np.int64),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation_space.sample(), float(action), self.time == 3, False, {}


@pytest.fixture
def own_environments() -> Iterator[None]:
    gymnasium.register("Switches-v0", Switches, max_episode_steps=10)
    gymnasium.register("Camera-v0", Camera, max_episode_steps=4)
    yield
    del gymnasium.registry["Switches-v0"], gymnasium.registry["Camera-v0"]


@pytest.mark.parametrize(
    ("arguments", "tstep_encoder"),
    [
        (["Pendulum-v1", *LIMIT], "ff"),
        (["RoomKeyDoor", "--env-arg", "meta_rollout_horizon=50", "--traj-encoder", "rnn"], "ff"),
        (["TMazeAltActive", "--traj-encoder", "rnn"], "ff"),
        (["Camera-v0", "--traj-encoder", "ff", "--timesteps-per-epoch", "12", *BLIND], "multimodal"),
    ],
)
def test_environments_train_with_their_default_settings_and_are_evaluated(
    arguments: list[str], tstep_encoder: str, own_environments: None, tmp_path: Path
) -> None:
    result = amago_run("train", "--run-dir", tmp_path, *TINY, "--epochs", "1", *arguments)
    summary = read_json(tmp_path / arguments[0] / "summary.json")
    assert summary["tstep_encoder"] == tstep_encoder
    warning = (
        "Warning: --set FFTstepEncoder.hide_rl2s=True has no effect: this run has no FFTstepEncoder "
        "(its encoders: MultiModalTstepEncoder, FFTrajEncoder).\n"
    )
    assert result.output.count(warning) == (tstep_encoder == "multimodal")
    assert summary["mean_return"] is not None
    shown = amago_run("eval", tmp_path / arguments[0], "--episodes", "4").output
    assert f"Average Total Return in {arguments[0]}" in shown


def test_multibinary_actions_train_without_further_settings(own_environments: None, tmp_path: Path) -> None:
    run = ["Switches-v0", "--run-dir", tmp_path]
    amago_run("train", *run, *TINY, "--epochs", "1")
    bound = read_json(tmp_path / "Switches-v0" / "run.json")["gin"]
    assert bound["amago.agent.Agent.online_coeff"] == 0.0
    assert "carry no gradient" in refused("train", *run, "--set", "Agent.online_coeff=1.0", "--overwrite")


def test_compare_draws_runs_into_one_picture(lake: tuple[Path, Result], tmp_path: Path) -> None:
    runs = ["--run-dir", lake[0].parent]
    control = ["--epochs", "1", "--traj-encoder", "ff", "--run-name", "control"]
    amago_run("train", *runs, *TINY, "--env-arg", "k_episodes=3", *control)
    result = amago_run("compare", "quickstart", "control", *runs, "--out", tmp_path / "docs" / "both.png")
    assert "control" in result.output
    assert "Success of attempt 3" in result.output
    with Image.open(tmp_path / "docs" / "both.png") as image:
        assert image.size[0] >= 1200


def test_the_command_trains_with_worker_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "amago.cli", "train", "--run-dir", str(tmp_path), *TINY]
    finished = subprocess.run(
        [*command, "--epochs", "1", "--env-mode", "async"], capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert read_json(tmp_path / "quickstart" / "summary.json")["env_steps"] == 240
    assert "\x1b[" not in finished.stdout


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ([], "replace it with --overwrite"),
        (["--overwrite", "--learning-rate", "0"], "learning_rate"),
        (["--overwrite", "--set", "Agent.gamma=7"], "gamma must be at most 1, got 7"),
        (["--overwrite", "--set", "TformerTrajEncoder.n_heads=7"], "n_heads"),
        (
            ["--overwrite", "--set", "TformerTrajEncoder.attention_type=@SlidingWindowFlexAttention"],
            "window_size",
        ),
    ],
)
def test_an_invalid_command_leaves_an_existing_run_unchanged(
    lake: tuple[Path, Result], settings: list[str], complaint: str
) -> None:
    assert complaint in refused("train", *settings, "--run-dir", lake[0].parent)
    assert (lake[0] / "summary.json").is_file()


def test_overwrite_deletes_nothing_but_runs(tmp_path: Path) -> None:
    notes = tmp_path / "quickstart" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    assert "contains other files than a run" in refused("train", "--overwrite", "--run-dir", tmp_path)
    assert notes.read_text() == "mine"


def test_a_run_without_run_json_can_be_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "quickstart" / "buffer" / "fifo").mkdir(parents=True)
    amago_run("train", "--overwrite", "--wandb", "--run-dir", tmp_path, *TINY, "--epochs", "1")
    assert read_json(tmp_path / "quickstart" / "summary.json")["env_steps"] == 240
    assert any((tmp_path / "quickstart").rglob("*.wandb"))


def test_an_invalid_run_folder_and_a_missing_gin_include_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said = refused("train", "CartPole-v1", *TINY, "--run-dir", tmp_path / "file")
    assert "--run-dir" in said
    assert "cannot be created" in said
    (tmp_path / "settings.gin").write_text('include "elsewhere.gin"\n')
    said = refused("train", "CartPole-v1", "--run-dir", tmp_path, "--gin", tmp_path / "settings.gin")
    assert "elsewhere.gin" in said


def test_a_run_that_was_stopped_in_its_last_epoch_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = Experiment.collect_new_training_data

    def collect_with_signal(self: Experiment) -> None:
        signal.raise_signal(signal.SIGTERM)
        collect(self)

    arguments = ["train", "CartPole-v1", *LIMIT, *TINY, "--run-dir", str(tmp_path), "--epochs", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "collect_new_training_data", collect_with_signal)
        stopped = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert stopped.exit_code == 128 + signal.SIGTERM
    assert "The same command with --resume continues the run." in stopped.output
    amago_run(*arguments, "--resume")
    summary = read_json(tmp_path / "CartPole-v1" / "summary.json")
    assert (summary["status"], summary["env_steps"], summary["gradient_steps"]) == ("finished", 60 * 4, 3)


@pytest.mark.parametrize(("ckpt_interval", "remedy"), [("1", "--resume"), ("50", "--overwrite")])
def test_an_interrupted_run_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ckpt_interval: str, remedy: str
) -> None:
    """Interrupted in its second epoch with a checkpoint of the first, or in the first, before any."""
    collect = Experiment.collect_new_training_data

    def interrupted(self: Experiment) -> None:
        if self.counters.epoch == (1 if ckpt_interval == "1" else 0):
            raise KeyboardInterrupt
        collect(self)

    monkeypatch.setattr(Experiment, "collect_new_training_data", interrupted)
    arguments = ["train", "CartPole-v1", *TINY, "--run-dir", str(tmp_path), "--epochs", "3"]
    result = CliRunner().invoke(app, [*arguments, "--ckpt-interval", ckpt_interval], env={"COLUMNS": "120"})
    assert result.exit_code == 130
    assert f"The same command with {remedy}" in " ".join(result.output.split())
