"""Options of the command line: generated from the recipe, shown by --help, and wrong values answered plainly."""

import dataclasses
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import gin
import pytest
from rich.console import Console
from torch import nn
from typer.testing import CliRunner, Result

from amago.agent import list_registered_agents
from amago.cli.app import app
from amago.cli.build import bind_gin, warn_of_unused_settings
from amago.cli.options import OPTIONS, UsageProblem, option_name, parse_arguments, parse_literal
from amago.cli.recipe import Recipe
from amago.envs.exploration import list_registered_explorations
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, list_registered_traj_encoders
from amago.nets.tstep_encoders import FFTstepEncoder, list_registered_tstep_encoders

# The options of train that scripts rely on, with the default where the recipe has one.
DEFAULTS = {
    "--kind": None,
    "--env-arg": None,
    "--actors": 8,
    "--env-mode": "sync",
    "--agent": "agent",
    "--tstep-encoder": None,
    "--traj-encoder": "transformer",
    "--memory-size": 128,
    "--memory-layers": 2,
    "--max-seq-len": None,
    "--exploration": "egreedy",
    "--timesteps-per-epoch": 200,
    "--buffer-size": 20_000,
    "--epochs": 100,
    "--batches-per-epoch": 100,
    "--batch-size": 24,
    "--learning-rate": 1e-4,
    "--mixed-precision": "no",
    "--loader-workers": 0,
    "--threads": None,
    "--seed": 0,
    "--val-interval": 10,
    "--ckpt-interval": 50,
    "--eval-episodes": 100,
}
OTHER_OPTIONS = [
    "--run-name",
    "--run-dir",
    "--resume",
    "--overwrite",
    "--wandb",
    "--tensorboard",
    "--gin",
    "--set",
]
# Other tests register names of their own.
BUILTIN_NAMES = {
    *("agent", "multitask", "ff", "cnn", "multimodal", "identity", "rnn", "transformer", "mamba"),
    *("egreedy", "bilevel"),
}


@pytest.fixture(autouse=True)
def _gin_as_before() -> Iterator[None]:
    yield
    gin.clear_config()


def amago_run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def words(result: Result) -> str:
    """The output without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def refused(*arguments: str) -> str:
    result = amago_run(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    return words(result)


@pytest.mark.parametrize(
    "command",
    [
        *([], ["train"], ["eval"], ["compare"], ["import-policy"], ["convert"], ["inspect"]),
        *(["list"], ["check-env"]),
    ],
)
def test_help_fits_80_columns(command: list[str]) -> None:
    result = amago_run(*command, "--help")
    assert result.exit_code == 0
    assert max(len(line.rstrip()) for line in result.output.splitlines()) <= 80


def test_options_and_their_defaults_are_those_of_the_recipe() -> None:
    recipe = dataclasses.asdict(Recipe(env="CartPole-v1"))
    assert {option_name(name) for name in OPTIONS} == set(DEFAULTS)
    for name in OPTIONS:
        assert recipe[name] == (DEFAULTS[option_name(name)] if name != "env_args" else {})
    for command in ("train", "import-policy"):
        shown = amago_run(command, "--help").output
        assert all(f" {option} " in shown for option in DEFAULTS)
    for option in OTHER_OPTIONS:
        assert f" {option} " in amago_run("train", "--help").output


@pytest.mark.parametrize(
    ("option", "registered"),
    [
        ("--agent", list_registered_agents),
        ("--tstep-encoder", list_registered_tstep_encoders),
        ("--traj-encoder", list_registered_traj_encoders),
        ("--exploration", list_registered_explorations),
    ],
)
def test_help_lists_the_registered_names(option: str, registered: Callable[[], list[str]]) -> None:
    named = re.search(rf" {option} +NAME +[^:]+: ([a-z, ]+)\.", words(amago_run("train", "--help")))
    assert named
    assert set(re.split(", | or ", named[1])) - {"gru"} == set(registered()) & BUILTIN_NAMES


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "--traj-encodr", "ff"], "--traj-encoder"),
        (["train", "--learning_rate", "3"], "--learning-rate"),
        (["trian"], "train"),
        (["train", "--env-mode", "snc"], "sync"),
        (["train", "CartPol-v1"], "CartPole-v1"),
        (["train", "MetaFrozenLak"], "MetaFrozenLake"),
        (["check-env", "Pendulm-v1"], "Pendulum-v1"),
        (["list", "environment"], "environments"),
        (["train", "--traj-encoder", "transfomer"], "transformer"),
        (["train", "--exploration", "egredy"], "egreedy"),
        (["train", "--set", "Agnet.gamma=0.9"], "Agent"),
        (["train", "--set", "Agent.gama=0.9"], "gamma"),
        (["train", "--set", "amago.agent.Agnt.gamma=0.9"], "amago.agent.Agent"),
    ],
)
def test_a_mistyped_name_suggests_the_most_similar_one(arguments: list[str], meant: str) -> None:
    pattern = rf"([Dd]id you mean|Possible options:|is not one of) '?{re.escape(meant)}"
    assert re.search(pattern, refused(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--set", "Agent.gamma"], "KEY=VALUE"),
        (["train", "--set", "gamma=0.9"], "names no parameter"),
        (["train", "--set", "FFTstepEncoder.activation=relu"], "in quotes"),
        (["train", "--set", "Experiment.batch_size=3"], "give --batch-size instead"),
        (["train", "--epochs", "0"], "--epochs"),
        (["train", "--kind", "memry"], "'vectors', 'continuous', 'memory', 'pixels', 'tokens'"),
        (["launch", "--kind", "offline"], "'vectors', 'continuous', 'memory', 'pixels', 'tokens'"),
        (["train", "--traj-encoder", "lstm"], "Registered are ff, gru, "),
        (["train", "--env-arg", "size=1"], "size must be at least 2"),
        (["train", "--gin", "absent.gin"], "absent.gin"),
        (["train", "--resume"], "there is no run"),
        (["train", "Pendulum-v1", "--env-mode", "already_vectorized"], "use sync or async"),
        (["train", "MetaFrozenLake", "--env-mode", "already_vectorized"], "Gymnax"),
        (["eval", "absent"], "there is no run"),
        (["compare", "absent"], "there is no run"),
    ],
)
def test_an_invalid_value_is_explained(arguments: list[str], message: str, tmp_path: Path) -> None:
    assert message in refused(*arguments, "--run-dir", str(tmp_path))


def test_a_mistake_in_a_gin_file_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.gin"
    path.write_text("Agent.tau = 0.01\nAgent.gama = 0.9\n")
    shown = refused("train", "--gin", str(path)).replace(" ", "")
    assert all(part in shown for part in ("Didyoumean'gamma'", "mine.gin", "line2"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("-0.5", -0.5),
        ("true", True),
        ("none", None),
        ("(1, 2)", (1, 2)),
        ("random", "random"),
        ("'4'", "4"),
    ],
)
def test_parse_literal_returns_the_value_or_the_text(text: str, value: object) -> None:
    assert parse_literal(text) == value
    assert type(parse_literal(text)) is type(value)


def test_arguments_are_split_at_the_first_equals_sign() -> None:
    assert parse_arguments(["size=3", "name=a=b"], "--env-arg") == {"size": 3, "name": "a=b"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["size"], "KEY=VALUE"),
        (["=3"], "KEY=VALUE"),
        (["size="], "KEY=VALUE"),
        (["a=1", "a=2"], "given twice"),
    ],
)
def test_malformed_environment_arguments_name_their_option(texts: list[str], message: str) -> None:
    with pytest.raises(UsageProblem, match=message) as caught:
        parse_arguments(texts, "--env-arg")
    assert caught.value.option == "--env-arg"


@gin.register(module="tests")
class Registered(FFTstepEncoder):
    """gin binds what `register` returns to itself, and leaves this class as it is."""


class OwnAgent(nn.Module):
    """Encoders of which one is of a subclass, and one inside of the other."""

    def __init__(self) -> None:
        super().__init__()
        spaces: dict[str, Any] = {"obs_space": {"observation": (3,)}, "rl2_space": (3,)}
        self.tstep_encoder = Registered(**spaces)
        self.tstep_encoder.inner = GRUTrajEncoder(tstep_dim=8, max_seq_len=4)
        self.traj_encoder = FFTrajEncoder(tstep_dim=8, max_seq_len=4)


def test_a_setting_of_an_encoder_that_the_agent_does_not_have_is_named() -> None:
    used = [
        *("Registered.hide_rl2s=True", "FFTstepEncoder.d_hidden=8", "TstepEncoder.hide_rewards=True"),
        *("tests.Registered.n_layers=1", "some_scope/FFTrajEncoder.d_model=8", "GRUTrajEncoder.d_hidden=8"),
        *("Agent.tau=0.5", "MultiTaskAgent.tau=0.5"),
    ]
    unused = ["CNNTstepEncoder.hide_rl2s = True", "traj_encoders.MambaTrajEncoder.d_model=8"]
    bind_gin({}, (), [*used, *unused])
    console = Console(file=io.StringIO(), width=80)
    warn_of_unused_settings([*used, *unused], cast(Any, OwnAgent()), console)
    encoders = "(its encoders: Registered, FFTrajEncoder)"
    assert cast(io.StringIO, console.file).getvalue().splitlines() == [
        f"Warning: --set {unused[0]} has no effect: this run has no CNNTstepEncoder {encoders}.",
        f"Warning: --set {unused[1]} has no effect: this run has no MambaTrajEncoder {encoders}.",
    ]


def test_a_launch_names_a_setting_of_another_encoder(tmp_path: Path) -> None:
    other = "MultiModalTstepEncoder.hide_rl2s=True"
    # Refused after the agent was built, and before processes are started.
    refusal = ["--set", "Experiment.overlap_collection=True"]
    shown = refused("launch", "--set", other, *refusal, "--run-dir", tmp_path)
    assert f"--set {other} has no effect: this run has no MultiModalTstepEncoder" in shown


def test_a_setting_of_agent_that_another_agent_does_not_get_is_refused(tmp_path: Path) -> None:
    shown = refused(
        "train", "CartPole-v1", "--agent", "multitask", "--set", "Agent.tau=0.5", "--run-dir", tmp_path
    )
    assert "Agent.tau has no effect on the MultiTaskAgent that is trained: give MultiTaskAgent.tau" in shown
    assert not any(tmp_path.iterdir())
