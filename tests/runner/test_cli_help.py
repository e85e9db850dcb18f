"""Help that fits a terminal, and mistakes that are answered with exit code 2 and the right name."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from amago.agent import list_registered_agents
from amago.cli.app import app
from amago.envs.exploration import list_registered_explorations
from amago.nets.traj_encoders import list_registered_traj_encoders
from amago.nets.tstep_encoders import list_registered_tstep_encoders

OPTIONS = [
    "--env-arg",
    "--actors",
    "--env-mode",
    "--agent",
    "--tstep-encoder",
    "--traj-encoder",
    "--memory-size",
    "--memory-layers",
    "--max-seq-len",
    "--exploration",
    "--timesteps-per-epoch",
    "--epochs",
    "--batches-per-epoch",
    "--batch-size",
    "--learning-rate",
    "--mixed-precision",
    "--run-name",
    "--run-dir",
    "--seed",
    "--resume",
    "--wandb",
    "--eval-episodes",
    "--gin",
    "--set",
]
# Every name that the packages register, in this version or a later one.
BUILTIN_NAMES = {
    "agent",
    "multitask",
    "ff",
    "cnn",
    "multimodal",
    "identity",
    "rnn",
    "transformer",
    "mamba",
    "egreedy",
    "bilevel",
}


def amago_run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def words(result: Result) -> str:
    """What was printed, without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


@pytest.mark.parametrize(
    "command", [[], ["train"], ["eval"], ["compare"], ["import-policy"], ["convert"], ["inspect"]]
)
def test_help_fits_80_columns(command: list[str]) -> None:
    result = amago_run(*command, "--help")
    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= 80


def test_options_of_train_are_grouped() -> None:
    shown = amago_run("train", "--help").output
    for panel in ("Environment", "Agent", "Collecting", "Learning", "Run", "Everything else, through gin"):
        assert f"╭─ {panel} " in shown
    for option in OPTIONS:
        assert f" {option} " in shown


@pytest.mark.parametrize(
    ("option", "registered"),
    [
        ("--agent", list_registered_agents),
        ("--tstep-encoder", list_registered_tstep_encoders),
        ("--traj-encoder", list_registered_traj_encoders),
        ("--exploration", list_registered_explorations),
    ],
)
def test_help_lists_the_names_that_are_registered(option: str, registered: Callable[[], list[str]]) -> None:
    named = re.search(rf" {option} +NAME +[^:]+: ([a-z, ]+)\.", words(amago_run("train", "--help")))
    assert named
    # Other tests register names of their own, so there may be more.
    assert set(named[1].split(", ")) == set(registered()) & BUILTIN_NAMES


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "--traj-encodr", "ff"], "--traj-encoder"),
        (["train", "--memory-siz", "3"], "--memory-size"),
        (["train", "--learning_rate", "3"], "--learning-rate"),
        (["eval", "run", "--episods", "3"], "--episodes"),
        (["trian"], "train"),
        (["train", "--env-mode", "snc"], "sync"),
        (["train", "CartPol-v1"], "CartPole-v1"),
        (["train", "MetaFrozenLak"], "MetaFrozenLake"),
        (["train", "--env-arg", "sise=4"], "size"),
        (["train", "--traj-encoder", "transfomer"], "transformer"),
        (["train", "--tstep-encoder", "cn"], "cnn"),
        (["train", "--agent", "agnet"], "agent"),
        (["train", "--exploration", "egredy"], "egreedy"),
        (["train", "--set", "Agnet.gamma=0.9"], "Agent"),
        (["train", "--set", "Agent.gama=0.9"], "gamma"),
        (["train", "--set", "amago.agent.Agnt.gamma=0.9"], "amago.agent.Agent"),
    ],
)
def test_a_mistake_is_answered_with_the_nearest_name(
    arguments: list[str], meant: str, tmp_path: Path
) -> None:
    result = amago_run(*arguments, *(["--run-dir", str(tmp_path)] if arguments[0] == "train" else []))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert re.search(
        rf"([Dd]id you mean|Possible options:|is not one of) '?{re.escape(meant)}", words(result)
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--set", "Agent.gamma"], "KEY=VALUE"),
        (["train", "--set", "gamma=0.9"], "names no parameter"),
        (["train", "--set", "FFTstepEncoder.activation=relu"], "needs? quotes|in quotes"),
        (["train", "--epochs", "0"], "--epochs"),
        (["train", "--env-arg", "size"], "KEY=VALUE"),
        (["train", "--env-arg", "size=1"], "size must be at least 2"),
        (["train", "--gin", "absent.gin"], "absent.gin"),
        (["train", "--resume"], "no run"),
        (["eval", "absent"], "no run"),
        (["compare", "absent"], "no run"),
        (["import-policy", "absent.pt", "run"], "absent.pt"),
    ],
)
def test_a_value_that_cannot_be_used_is_explained(arguments: list[str], said: str, tmp_path: Path) -> None:
    result = amago_run(*arguments, *(["--run-dir", str(tmp_path)]))
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit), "a traceback"
    assert re.search(said, words(result))


def test_a_mistake_in_a_gin_file_names_the_file_and_the_nearest_parameter(tmp_path: Path) -> None:
    path = f"{tmp_path}/mine.gin"
    with open(path, "w") as file:
        file.write("Agent.tau = 0.01\nAgent.gama = 0.9\n")
    result = amago_run("train", "--gin", path, "--run-dir", str(tmp_path))
    assert result.exit_code == 2
    shown = words(result).replace(" ", "")
    assert "didyoumean'gamma'" in shown
    assert "mine.gin" in shown
    assert "line2" in shown
