"""`amago-run import-policy`: a policy that was saved elsewhere is told, checked and evaluated."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner, Result

from amago.agent import Agent, MultiTaskAgent
from amago.cli.app import app
from amago.cli.environments import EnvMaker
from amago.cli_utils import use_config
from amago.experiment import Experiment
from amago.experiment.policy_sizes import UNKNOWN, facts_of
from amago.experiment.saved_policies import read_saved_policy
from amago.nets.actor_critic import ResidualActor
from amago.nets.policy_dists import GMM
from amago.nets.specs import ActionSpec
from amago.nets.traj_encoders import TformerTrajEncoder, get_traj_encoder_cls
from amago.nets.tstep_encoders import FFTstepEncoder

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "2", "--batch-size", "4", "--epochs", "1"),
    *("--timesteps-per-epoch", "40", "--batches-per-epoch", "2", "--eval-episodes", "6"),
]
LIMIT = ["--env-arg", "max_episode_steps=30"]
MakeRun = Callable[..., Path]


def amago_run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def words(result: Result) -> str:
    """What was printed, without frames and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def refused(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), "a traceback"
    return words(result)


@pytest.fixture(autouse=True)
def _gin_as_before() -> Any:
    """Leaves gin empty and unlocked: other tests bind their own settings."""
    yield
    gin.clear_config()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of the same kind, `first` and `second`, with different weights."""
    folder = tmp_path_factory.mktemp("runs")
    for name, seed in (("first", "1"), ("second", "2")):
        amago_run(
            "train", "CartPole-v1", *LIMIT, *TINY, "--run-dir", folder, "--run-name", name, "--seed", seed
        )
    return folder


def latest(folder: Path) -> Path:
    return folder / "ckpts" / "latest" / "policy.pt"


def weights_of(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(latest(folder), weights_only=True)
    return weights


def with_copies(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As policies are saved that keep the critics twice."""
    copies = {f"maximized_{name}": x.clone() for name, x in weights.items() if name.startswith("critics.")}
    return weights | copies


def evaluated(run: str, folder: Path) -> str:
    """The figures of an evaluation whose episodes and draws are those of seed 1."""
    shown = words(amago_run("eval", run, "--run-dir", folder, "--seed", "1"))
    return shown[shown.index("Metric") :]


def test_an_imported_policy_is_what_eval_evaluates(runs: Path, tmp_path: Path) -> None:
    saved = tmp_path / "policy.pt"
    torch.save(with_copies(weights_of(runs / "first")), saved)
    before = weights_of(runs / "second")
    result = amago_run("import-policy", saved, "second", "--run-dir", runs)
    own = weights_of(runs / "second")
    assert own.keys() == before.keys()
    assert all(torch.equal(tensor, weights_of(runs / "first")[name]) for name, tensor in own.items())
    assert evaluated("second", runs) == evaluated("first", runs)
    replaced = latest(runs / "second").with_name("policy_before_import.pt")
    kept = torch.load(replaced, weights_only=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in kept.items())
    assert not all(torch.equal(tensor, own[name]) for name, tensor in kept.items())
    assert "6 tensors, a copy of the critics that is not needed" in words(result)
    amago_run("import-policy", saved, "second", "--run-dir", runs)
    assert torch.load(replaced, weights_only=True).keys() == before.keys()
    assert {path.name for path in replaced.parent.iterdir()} == {replaced.name, "policy.pt"}


def test_it_says_what_it_found(runs: Path) -> None:
    said = words(amago_run("import-policy", latest(runs / "first"), "first", "--run-dir", runs))
    assert "agent agent, discounts 7" in said
    assert "actions discrete, width 2" in said
    assert "timestep encoder ff, n_layers 2, d_hidden 512, d_output 256, numbers that it sees 7" in said
    assert "memory transformer, n_layers 1, d_model 16, d_ff 64, n_heads 8" in said
    assert "critics num_critics 4, n_layers 2, d_hidden 256" in said
    assert re.search(r"[\d,]+ numbers in \d+ tensors", said)
    assert re.search(r"[\d,]+ trainable parameters are now the latest policy", said)


def test_without_a_run_the_environment_is_enough_to_make_one(runs: Path, tmp_path: Path) -> None:
    saved = latest(runs / "first")
    arguments = ["import-policy", saved, "new", "--run-dir", tmp_path]
    assert "To make a run for this policy, name its environment: --env ENV" in refused(*arguments)
    amago_run(*arguments, "--env", "CartPole-v1", *LIMIT)
    assert evaluated("new", tmp_path).startswith("Metric Value Average Total Return")
    record = json.loads((tmp_path / "new" / "run.json").read_text())
    assert record["gin"]["amago.nets.traj_encoders.TformerTrajEncoder.d_model"] == 16
    assert record["environment"]["args"] == {"max_episode_steps": 30}
    assert record["unwritable"] == {}
    assert "TformerTrajEncoder.d_ff" in (tmp_path / "new" / "config.txt").read_text()
    assert "the run" in refused(*arguments, "--env", "CartPole-v1")


def test_a_policy_of_default_sizes_makes_its_run_and_acts(tmp_path: Path) -> None:
    """As other runs saved it: everything default, three layers of 256, the critics twice."""
    env = EnvMaker(name="Pendulum-v1")()
    torch.manual_seed(0)
    agent = Agent(
        obs_space=env.observation_space,
        rl2_space=env.rl2_space,
        action_space=env.action_space,
        max_seq_len=8,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder,
    )
    torch.save(with_copies(agent.state_dict()), tmp_path / "policy.pt")
    arguments = ["--env", "Pendulum-v1", "--env-arg", "max_episode_steps=5", "--max-seq-len", "8"]
    amago_run("import-policy", tmp_path / "policy.pt", "pendulum", *arguments, "--run-dir", tmp_path)
    shown = amago_run("eval", "pendulum", "--run-dir", tmp_path, "--episodes", "8").output
    assert "Average Total Return in Pendulum-v1" in shown
    assert json.loads((tmp_path / "pendulum" / "run.json").read_text())["arguments"]["max_seq_len"] == 8


def test_sizes_that_differ_are_named_with_the_setting_that_decides_them(runs: Path, tmp_path: Path) -> None:
    setting = ["--set", "Agent.num_critics=3", "--traj-encoder", "rnn"]
    amago_run("train", "CartPole-v1", *LIMIT, *TINY, *setting, "--run-dir", tmp_path, "--run-name", "other")
    before = latest(tmp_path / "other").read_bytes()
    said = refused("import-policy", latest(runs / "first"), "other", "--run-dir", tmp_path)
    assert "memory: transformer in the file, rnn in the run, which needs --traj-encoder transformer" in said
    assert "num_critics: 4 in the file, 3 in the run, which needs --set Agent.num_critics=4" in said
    assert "in the file alone: traj_encoder.tformer" in said
    assert (
        "of another shape: critics.net.inp_layer.weight (4x16x256 in the file, 3x16x256 in the run)" in said
    )
    assert "missing from the file: traj_encoder.rnn" in said
    assert "NAME --env ENV" in said
    assert latest(tmp_path / "other").read_bytes() == before


def test_a_policy_of_another_environment_is_told_apart(runs: Path, tmp_path: Path) -> None:
    arguments = ["--env", "Pendulum-v1", "--run-dir", tmp_path]
    said = refused("import-policy", latest(runs / "first"), "new", *arguments)
    assert "actions: discrete in the file, continuous in the run" in said
    assert "it was trained in another one" in said
    assert not (tmp_path / "new").exists()


def test_settings_that_leave_no_trace_in_weights_are_given(runs: Path, tmp_path: Path) -> None:
    arguments = ["import-policy", latest(runs / "first"), "--run-dir", tmp_path]
    amago_run(*arguments, "new", "--env", "CartPole-v1", "--set", "Agent.gamma=0.9", "--max-seq-len", "5")
    record = json.loads((tmp_path / "new" / "run.json").read_text())
    assert record["gin"]["amago.agent.Agent.gamma"] == 0.9
    assert record["arguments"]["max_seq_len"] == 5
    said = refused(*arguments, "new", "--set", "Agent.gamma=0.9")
    assert "a run that exists keeps its settings" in said


class Code:
    """Runs code when it is unpickled without care."""

    def __reduce__(self) -> Any:
        return (print, ("code from a file ran",))


def test_a_file_with_code_is_refused_and_not_run(runs: Path, tmp_path: Path) -> None:
    saved = tmp_path / "policy.pt"
    torch.save(weights_of(runs / "first") | {"extra": Code()}, saved)
    said = refused("import-policy", saved, "first", "--run-dir", runs)
    assert "it holds more than tensors, and loading the rest could run code" in said
    assert "torch.save(agent.state_dict(), path)" in said
    assert "code from a file ran" not in said
    assert "weights_only=False" not in said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"text", "is no file of torch.save"),
        (b"", "is no file of torch.save"),
        (b"PK\x03\x04, and no archive", "is no file of torch.save"),
        ({"epoch": 3}, "holds no weights: a dictionary of epoch"),
        ([1, 2], "holds no weights: a list"),
    ],
)
def test_a_file_without_weights_is_told(content: Any, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=complaint):
        read_saved_policy(path)


class ModuleThatTorchBlocks:
    def __reduce__(self) -> Any:
        return (os.getcwd, ())


def test_what_torch_says_of_a_file_with_code_comes_without_its_advice_to_run_it(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.save({"actor.weight": torch.ones(1), "extra": ModuleThatTorchBlocks()}, path)
    with pytest.raises(
        ValueError, match="holds more than tensors, and loading the rest could run code"
    ) as told:
        read_saved_policy(path)
    assert "getcwd" in str(told.value)
    assert "Re-running" not in str(told.value)


def test_a_dictionary_that_holds_itself_is_no_policy(tmp_path: Path) -> None:
    path, endless = tmp_path / "policy.pt", {}
    endless["model"] = endless
    torch.save(endless, path)
    with pytest.raises(ValueError, match="only dictionaries in dictionaries"):
        read_saved_policy(path)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (torch.zeros(1).expand(10**12), "more numbers than the file has for it"),
        (torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (torch.eye(2, dtype=torch.complex64), "torch.complex64"),
        (torch.empty(2, device="meta"), "without numbers"),
    ],
    ids=["bomb", "sparse", "complex", "meta"],
)
def test_tensors_that_are_no_plain_arrays_are_refused_by_name(tensor, complaint, tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    torch.save({"actor.weight": tensor}, path)
    with pytest.raises(ValueError, match=complaint) as told:
        read_saved_policy(path)
    assert "'actor.weight'" in str(told.value)


def test_wrapped_and_prefixed_weights_are_found(tmp_path: Path) -> None:
    weights = {"actor.weight": torch.ones(2), "popart.mu": torch.zeros(3)}
    prefixed = {f"module._orig_mod.{name}": tensor for name, tensor in weights.items()}
    torch.save({"epoch": 3, "state_dict": prefixed}, tmp_path / "wrapped.pt")
    save_file(weights, tmp_path / "policy.safetensors")
    torch.save({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "nan.pt")
    wrapped = read_saved_policy(tmp_path / "wrapped.pt")
    assert wrapped.unwrapped == ("state_dict", "module.", "_orig_mod.")
    for found in (wrapped.weights, read_saved_policy(tmp_path / "policy.safetensors").weights):
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert read_saved_policy(tmp_path / "nan.pt").not_finite == ["a"]


def test_an_experiment_loads_such_a_file_too(
    make_experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    experiment = make_experiment()
    experiment.start()
    weights = {name: torch.rand_like(x.float()) for name, x in experiment.policy.state_dict().items()}
    torch.save(
        {"model": {f"module.{name}": x for name, x in with_copies(weights).items()}}, tmp_path / "p.pt"
    )
    experiment.load_checkpoint_from_path(tmp_path / "p.pt", is_accelerate_state=False)
    loaded = experiment.policy.state_dict()
    assert all(
        torch.equal(loaded[name].float(), x.to(loaded[name].dtype).float()) for name, x in weights.items()
    )


ODD_SIZES = {
    "FFTstepEncoder.n_layers": 1,
    "FFTstepEncoder.d_hidden": 10,
    "FFTstepEncoder.d_output": 12,
    "FFTrajEncoder.d_model": 14,
    "FFTrajEncoder.d_ff": 9,
    "FFTrajEncoder.n_layers": 2,
    "GRUTrajEncoder.d_hidden": 11,
    "GRUTrajEncoder.d_output": 13,
    "GRUTrajEncoder.n_layers": 3,
    "TformerTrajEncoder.d_model": 12,
    "TformerTrajEncoder.d_ff": 20,
    "TformerTrajEncoder.n_heads": 3,
    "TformerTrajEncoder.n_layers": 2,
    "TformerTrajEncoder.sigma_reparam": False,
    "TformerTrajEncoder.normformer_norms": False,
    "TformerTrajEncoder.pos_emb": "learned",
    "LearnablePosEmb.max_time_idx": 17,
    "MambaTrajEncoder.d_model": 10,
    "MambaTrajEncoder.d_state": 4,
    "MambaTrajEncoder.d_conv": 3,
    "MambaTrajEncoder.expand": 3,
    "MambaTrajEncoder.n_layers": 2,
    "Agent.num_critics": 3,
    "MultiTaskAgent.num_critics": 5,
    "NCriticsTwoHot.n_layers": 3,
    "NCriticsTwoHot.d_hidden": 19,
    "NCriticsTwoHot.output_bins": 33,
    "Actor.n_layers": 3,
    "Actor.d_hidden": 15,
    "NCritics.n_layers": 1,
    "NCritics.d_hidden": 17,
    "Multigammas.discrete": [0.5],
    "Multigammas.continuous": [0.5, 0.9],
}
BOX = ActionSpec("box", (2,), -1.0, 1.0)


def shapes_of(agent: type[Agent], encoder: str, action: ActionSpec) -> dict[str, torch.Size]:
    made = agent(
        obs_space={"observation": (4,)},
        rl2_space=(1 + action.dim,),
        action_space=action,
        max_seq_len=8,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=get_traj_encoder_cls(encoder),
    )
    return {name: tensor.shape for name, tensor in made.state_dict().items()}


@pytest.mark.parametrize("encoder", ["ff", "rnn", "transformer", "mamba", "identity"])
@pytest.mark.parametrize("action", [ActionSpec("discrete", (3,)), BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("agent", [Agent, MultiTaskAgent])
def test_the_sizes_that_weights_tell_rebuild_the_agent(
    agent: type[Agent], action: ActionSpec, encoder: str
) -> None:
    use_config(ODD_SIZES, finalize=False)
    assert_sizes_rebuild(agent, encoder, action)


def assert_sizes_rebuild(agent: type[Agent], encoder: str, action: ActionSpec) -> None:
    """That gin has to be given nothing but what the shapes tell."""
    shapes = shapes_of(agent, encoder, action)
    facts = facts_of({name: torch.empty(shape) for name, shape in shapes.items()})
    kinds = {fact.part: fact.value for fact in facts if fact.name == "kind"}
    assert (kinds["memory"], kinds["agent"]) == (
        encoder,
        {Agent: "agent", MultiTaskAgent: "multitask"}[agent],
    )
    gin.clear_config()
    use_config({key: value for fact in facts for key, value in fact.binding.items()}, finalize=False)
    for name in ("Multigammas.discrete", "Multigammas.continuous"):
        gin.bind_parameter(name, ODD_SIZES[name])
    assert shapes_of(agent, encoder, action) == shapes


@pytest.mark.parametrize(
    "settings",
    [
        {"MultiTaskAgent.actor_type": ResidualActor, "ResidualActor.residual_blocks": 3},
        {"Actor.continuous_dist_type": GMM, "GMM.gmm_modes": 4},
        {"MultiTaskAgent.use_multigamma": False},
    ],
    ids=["residual", "gmm", "one discount"],
)
def test_other_heads_are_told_too(settings: dict[str, Any]) -> None:
    use_config(ODD_SIZES | settings, finalize=False)
    assert_sizes_rebuild(MultiTaskAgent, "ff", BOX)


def test_parts_of_other_kinds_are_not_guessed(tmp_path: Path) -> None:
    strange = {"tstep_encoder.own.weight": torch.zeros(2), "traj_encoder.own.weight": torch.zeros(2)}
    kinds = {fact.part: fact.value for fact in facts_of(strange) if fact.name == "kind"}
    assert kinds == dict.fromkeys(("agent", "timestep encoder", "memory", "actor"), UNKNOWN)
    torch.save(strange, tmp_path / "policy.pt")
    said = refused(
        "import-policy", tmp_path / "policy.pt", "new", "--env", "CartPole-v1", "--run-dir", tmp_path
    )
    assert "is of a kind that amago-run does not know" in said
    assert "load_checkpoint_from_path" in said
