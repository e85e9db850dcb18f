"""`amago-run` end to end on small budgets: train, summary, picture, eval, resume, compare."""

import json
import re
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
from amago.cli.environments import EnvMaker
from amago.experiment import Experiment
from amago.experiment.run_file import read_run

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "4", "--batch-size", "4"),
    *("--timesteps-per-epoch", "60", "--batches-per-epoch", "3", "--eval-episodes", "8"),
    *("--val-interval", "1", "--seed", "5"),
]


def amago_run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: str) -> str:
    """What the command answers to a mistake, without frames and line breaks."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


@pytest.fixture(autouse=True)
def _gin_as_before() -> Any:
    """Leaves gin empty and unlocked: other tests bind their own settings."""
    yield
    gin.clear_config()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A trained run on a small lake, and what the command printed."""
    runs = tmp_path_factory.mktemp("runs")
    result = amago_run(
        "train",
        "--env-arg",
        "k_episodes=3",
        "--run-dir",
        str(runs),
        *TINY,
        "--epochs",
        "2",
        "--set",
        "Agent.tau=0.25",
    )
    return runs / "quickstart", result


def summary_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def test_a_run_without_an_environment_is_the_quickstart(lake: tuple[Path, Result]) -> None:
    folder, _ = lake
    summary = summary_of(folder)
    assert summary["run"] == "quickstart"
    assert (summary["env"], summary["env_args"]) == ("MetaFrozenLake", {"size": 3, "k_episodes": 3})


def test_the_summary_counts_what_was_trained(lake: tuple[Path, Result]) -> None:
    summary = summary_of(lake[0])
    assert summary["env_steps"] == 2 * 60 * 4
    assert summary["gradient_steps"] == 2 * 3
    assert summary["seed"] == 5
    assert 0 < summary["wall_seconds"] < 60
    assert len(summary["success_by_attempt"]) == 3
    assert all(0 <= rate <= 1 for rate in summary["success_by_attempt"])
    assert summary["mean_return"] == pytest.approx(sum(summary["success_by_attempt"]))


def test_the_run_ends_with_a_table_of_success_by_attempt(lake: tuple[Path, Result]) -> None:
    _, result = lake
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 200
    assert any("Attempt" in line and "Success" in line for line in lines)
    assert sum(line.startswith("epoch ") for line in lines) == 2


def test_the_learning_curve_is_a_picture(lake: tuple[Path, Result]) -> None:
    with Image.open(lake[0] / "learning_curve.png") as image:
        assert image.format == "PNG"
        assert image.size[0] >= 1200
        assert image.size[1] >= 500


def test_evaluating_the_run_repeats_its_final_figures(lake: tuple[Path, Result]) -> None:
    folder, _ = lake
    before = sorted(path.name for path in folder.iterdir())
    result = amago_run("eval", "quickstart", "--run-dir", str(folder.parent))
    summary = summary_of(folder)
    assert f"Mean return  {summary['mean_return']:.3f} over 8 fresh episodes" in result.output
    assert sorted(path.name for path in folder.iterdir()) == before


def test_evaluation_takes_other_episodes_and_an_earlier_checkpoint(lake: tuple[Path, Result]) -> None:
    result = amago_run("eval", str(lake[0]), "--episodes", "12", "--seed", "1", "--checkpoint", "0")
    assert "over 12 fresh episodes" in result.output
    assert "checkpoint 0" in result.output


def test_a_checkpoint_that_is_not_there_is_answered_with_those_that_are(lake: tuple[Path, Result]) -> None:
    assert "epochs with a checkpoint: 0, 1." in refused("eval", str(lake[0]), "--checkpoint", "7")


def test_settings_reach_the_agent_and_are_noted(lake: tuple[Path, Result]) -> None:
    record = json.loads((lake[0] / "run.json").read_text())
    assert record["gin"]["amago.agent.Agent.tau"] == 0.25
    assert record["environment"]["args"] == {"size": 3, "k_episodes": 3}


def test_the_run_file_holds_everything_that_the_run_was_built_from(lake: tuple[Path, Result]) -> None:
    record = read_run(lake[0])
    assert record.unwritable == {}
    assert record.experiment_arguments()["make_train_env"] == EnvMaker(
        name="MetaFrozenLake", args={"size": 3, "k_episodes": 3}
    )


def test_an_existing_run_is_never_replaced_unasked(lake: tuple[Path, Result]) -> None:
    folder, _ = lake
    said = refused("train", "--run-dir", str(folder.parent), *TINY)
    assert "continue it with --resume, replace it with --overwrite" in said
    assert (folder / "summary.json").is_file()


def test_later_settings_win_over_files_and_options(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gin", tmp_path / "second.gin"
    first.write_text("Agent.tau = 0.1\nAgent.gamma = 0.5\nTformerTrajEncoder.d_model = 24\n")
    second.write_text("Agent.tau = 0.2\n")
    arguments = ["--gin", str(first), "--gin", str(second), "--set", "Agent.gamma=0.75", "--epochs", "1"]
    amago_run("train", "--run-dir", str(tmp_path), *TINY, *arguments)
    bound = json.loads((tmp_path / "quickstart" / "run.json").read_text())["gin"]
    assert bound["amago.agent.Agent.tau"] == 0.2
    assert bound["amago.agent.Agent.gamma"] == 0.75
    weights = torch.load(tmp_path / "quickstart" / "ckpts" / "latest" / "policy.pt", weights_only=True)
    widths = {tensor.shape[-1] for name, tensor in weights.items() if name.startswith("traj_encoder")}
    assert 24 in widths
    assert 16 not in widths


def test_a_resumed_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    where = ["--run-dir", str(tmp_path), "--run-name", "run"]
    started = [
        "CartPole-v1",
        "--env-arg",
        "max_episode_steps=40",
        *TINY,
        "--epochs",
        "1",
        "--set",
        "Agent.tau=0.25",
    ]
    amago_run("train", *where, *started)
    before = json.loads((tmp_path / "run" / "run.json").read_text())
    amago_run("train", *where, "--resume", "--epochs", "3")
    summary = summary_of(tmp_path / "run")
    assert summary["env"] == "CartPole-v1"
    assert summary["env_steps"] == 3 * 60 * 4
    assert summary["gradient_steps"] == 3 * 3
    after = json.loads((tmp_path / "run" / "run.json").read_text())
    assert after["gin"] == before["gin"]
    said = refused("train", *where, "--resume", "--epochs", "4", "--memory-size", "32")
    assert "--memory-size" in said
    assert "cannot change" in said


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_any_gymnasium_id_trains(env: str, tmp_path: Path) -> None:
    limit = ["--env-arg", "max_episode_steps=40"]
    result = amago_run("train", env, "--run-dir", str(tmp_path), *TINY, *limit, "--epochs", "1")
    summary = summary_of(tmp_path / env)
    assert summary["env"] == env
    assert summary["success_by_attempt"] == []
    assert summary["mean_return"] is not None
    assert f"Average Total Return in {env}" in result.output


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


@pytest.fixture
def switches() -> Iterator[str]:
    gymnasium.register("Switches-v0", entry_point=Switches, max_episode_steps=10)
    yield "Switches-v0"
    del gymnasium.registry["Switches-v0"]


@pytest.mark.parametrize("agent", ["agent", "multitask"])
def test_an_environment_of_bits_trains_without_further_settings(
    switches: str, agent: str, tmp_path: Path
) -> None:
    amago_run("train", switches, "--agent", agent, "--run-dir", str(tmp_path), *TINY, "--epochs", "1")
    bound = json.loads((tmp_path / switches / "run.json").read_text())["gin"]
    name = {"agent": "Agent", "multitask": "MultiTaskAgent"}[agent]
    assert bound[f"amago.agent.{name}.online_coeff"] == 0.0
    said = refused(
        "train", switches, "--run-dir", str(tmp_path), "--set", "Agent.online_coeff=1.0", "--overwrite"
    )
    assert "carry no gradient" in said


@pytest.mark.parametrize(
    "arguments", [["RoomKeyDoor", "--env-arg", "meta_rollout_horizon=50"], ["TMazeAltActive"]]
)
def test_builtin_environments_train(arguments: list[str], tmp_path: Path) -> None:
    amago_run(
        "train", *arguments, "--run-dir", str(tmp_path), *TINY, "--epochs", "1", "--traj-encoder", "rnn"
    )
    assert summary_of(tmp_path / arguments[0])["traj_encoder"] == "rnn"


def test_a_run_and_its_control_share_a_picture(lake: tuple[Path, Result], tmp_path: Path) -> None:
    folder, _ = lake
    runs = ["--run-dir", str(folder.parent)]
    size = ["--env-arg", "k_episodes=3", "--epochs", "1", "--overwrite"]
    amago_run("train", *runs, *TINY, *size, "--traj-encoder", "ff", "--run-name", "control")
    result = amago_run(
        "compare", "quickstart", "control", *runs, "--out", str(tmp_path / "docs" / "both.png")
    )
    assert "feed-forward" in result.output
    assert "Success of attempt 3" in result.output
    with Image.open(tmp_path / "docs" / "both.png") as image:
        assert image.size[0] >= 1200


def test_workers_and_the_command_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "amago.cli", "train", "--run-dir", str(tmp_path), *TINY]
    finished = subprocess.run(
        [*command, "--epochs", "1", "--env-mode", "async"], capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    assert summary_of(tmp_path / "quickstart")["env_steps"] == 240
    assert "\x1b[" not in finished.stdout
    mistaken = subprocess.run([*command, "--sede", "3"], capture_output=True, text=True, timeout=120)
    assert mistaken.returncode == 2
    assert "--seed" in mistaken.stderr
    assert "Traceback" not in mistaken.stderr


def test_a_finished_run_is_not_resumed_without_more_epochs(lake: tuple[Path, Result]) -> None:
    folder, _ = lake
    before = (folder / "summary.json").read_text()
    assert "has finished its 2 epochs" in refused("train", "--resume", "--run-dir", str(folder.parent))
    assert (folder / "summary.json").read_text() == before


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        (("--learning-rate", "0"), "learning_rate is 0.0"),
        (("--set", "Agent.gamma=7"), "gamma must lie between 0 and 1, got 7"),
        (("--set", "TformerTrajEncoder.n_heads=7"), "d_model must be a multiple of n_heads (7)"),
        (("--set", "TformerTrajEncoder.pos_emb='learned'"), "max_time_idx"),
    ],
)
def test_a_setting_that_cannot_be_leaves_the_run_to_be_replaced_alone(
    lake: tuple[Path, Result], setting: tuple[str, str], complaint: str
) -> None:
    folder, _ = lake
    said = refused("train", "--overwrite", *setting, "--run-dir", str(folder.parent))
    assert complaint in said
    assert (folder / "summary.json").is_file()


def test_wandb_logs_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    amago_run("train", "--wandb", "--run-dir", str(tmp_path), *TINY, "--epochs", "1")
    assert any((tmp_path / "quickstart").rglob("*.wandb"))


def test_only_a_run_is_ever_overwritten(tmp_path: Path) -> None:
    notes = tmp_path / "quickstart" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    assert "holds something that is no run" in refused("train", "--overwrite", "--run-dir", str(tmp_path))
    assert notes.read_text() == "mine"


def test_a_folder_that_cannot_be_made_and_a_missing_include_are_answered_without_a_traceback(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder")
    answer = refused("train", "CartPole-v1", *TINY, "--run-dir", str(tmp_path / "file"))
    assert "--run-dir" in answer
    assert "cannot be made" in answer
    (tmp_path / "settings.gin").write_text('include "elsewhere.gin"\n')
    answer = refused(
        "train", "CartPole-v1", *TINY, "--run-dir", str(tmp_path), "--gin", str(tmp_path / "settings.gin")
    )
    assert "elsewhere.gin" in answer


@pytest.mark.parametrize(("ckpt_interval", "remedy"), [("1", "--resume"), ("50", "--overwrite")])
def test_an_interrupted_run_says_how_to_go_on(
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


def test_a_run_that_was_stopped_while_it_started_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "quickstart" / "buffer" / "fifo").mkdir(parents=True)
    amago_run("train", "--overwrite", "--run-dir", str(tmp_path), *TINY, "--epochs", "1")
    assert summary_of(tmp_path / "quickstart")["env_steps"] == 240


class Camera(gymnasium.Env[Any, int]):
    """An image, joints and an instruction, to be answered within three steps."""

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


def test_an_image_next_to_something_else_gets_the_encoder_for_both(tmp_path: Path) -> None:
    """It trains, and the run is rebuilt from its folder."""
    size = [
        "--traj-encoder",
        "ff",
        "--memory-size",
        "16",
        "--memory-layers",
        "1",
        "--actors",
        "2",
        "--epochs",
        "1",
    ]
    work = [
        "--timesteps-per-epoch",
        "12",
        "--batches-per-epoch",
        "2",
        "--batch-size",
        "4",
        "--eval-episodes",
        "2",
    ]
    gymnasium.register("Camera-v0", Camera, max_episode_steps=4)
    try:
        amago_run("train", "Camera-v0", "--run-dir", str(tmp_path), "--run-name", "seeing", *size, *work)
        assert summary_of(tmp_path / "seeing")["tstep_encoder"] == "multimodal"
        assert "Return in Camera-v0" in amago_run("eval", str(tmp_path / "seeing"), "--episodes", "2").output
    finally:
        del gymnasium.registry["Camera-v0"]
