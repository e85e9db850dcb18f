"""Fine-tuning: parts of saved policies, frozen networks, rates of single networks; all of it survives a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from amago.agent import Agent, BaseAgent
from amago.cli_utils import use_config
from amago.experiment import Experiment
from amago.experiment.schedule import LinearDecay
from amago.finetuning import load_policy_weights, make_adamw, parameter_groups
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder

Made = Callable[..., Experiment]
HEADS = ("actor", "critics", "popart")


def trained(make_experiment: Made, folder: str = "teacher", **changes: Any) -> Experiment:
    experiment = make_experiment(folder, **{"traj_encoder_type": GRUTrajEncoder, **changes})
    experiment.start()
    experiment.learn()
    return experiment


def new_agent(make_experiment: Made, folder: str = "student", **changes: Any) -> BaseAgent:
    experiment = make_experiment(folder, **{"traj_encoder_type": GRUTrajEncoder, "seed": 99, **changes})
    experiment.start()
    return experiment.policy


def copies(agent: BaseAgent) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in agent.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    """The networks of which a weight differs."""
    return {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}


def test_only_the_networks_that_are_named_are_loaded(make_experiment: Made) -> None:
    teacher = trained(make_experiment)
    agent = new_agent(make_experiment)
    before, taught = copies(agent), copies(teacher.policy)
    result = load_policy_weights(agent, teacher.run_dir, only=("tstep_encoder", "traj_encoder.rnn"))
    after = agent.state_dict()
    assert changed(before, after) == {"tstep_encoder", "traj_encoder"}
    assert result.loaded == [n for n in taught if n.startswith(("tstep_encoder.", "traj_encoder.rnn."))]
    assert all(torch.equal(after[name], taught[name]) for name in result.loaded)
    assert result.skipped["traj_encoder.out.weight"] == "not asked for"
    assert set(result.loaded).isdisjoint(result.skipped)


def test_heads_that_are_left_out_keep_their_new_weights(make_experiment: Made) -> None:
    teacher = trained(make_experiment)
    agent = new_agent(make_experiment)
    before = copies(agent)
    load_policy_weights(agent, teacher.checkpointer.latest_policy, except_=HEADS)
    assert changed(before, agent.state_dict()) == {"tstep_encoder", "traj_encoder"}


def test_targets_become_copies_of_what_is_loaded(make_experiment: Made) -> None:
    teacher = trained(make_experiment)
    agent = new_agent(make_experiment)
    assert isinstance(agent, Agent)
    load_policy_weights(agent, teacher.run_dir)
    for online, target in ((agent.actor, agent.target_actor), (agent.critics, agent.target_critics)):
        for ours, theirs in zip(online.parameters(), target.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert changed(copies(teacher.policy), agent.state_dict()) == {"target_actor", "target_critics"}


def test_weights_of_other_shapes_are_skipped_with_the_reason(make_experiment: Made) -> None:
    teacher = trained(make_experiment)
    use_config({"Actor.d_hidden": 12}, finalize=False)
    agent = new_agent(make_experiment)
    result = load_policy_weights(agent, teacher.run_dir, except_=("critics",))
    reasons = [why for name, why in result.skipped.items() if name.startswith("actor.")]
    assert reasons[0] == "shape (8, 8) in the file, (12, 8) in the agent"
    other = new_agent(make_experiment, "other", traj_encoder_type=TformerTrajEncoder)
    result = load_policy_weights(other, teacher.run_dir, only=("tstep_encoder", "traj_encoder"))
    assert result.skipped["traj_encoder.rnn.weight_ih_l0"] == "not in the agent"
    assert result.skipped["traj_encoder.tformer.inp.weight"] == "not in the file"
    with pytest.raises(ValueError, match=r"nothing of .*policy.pt was loaded: .*not asked for"):
        load_policy_weights(other, teacher.run_dir, only=("traj_encoder",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": ("tstep_encoders",)}, "no network 'tstep_encoders'. Did you mean 'tstep_encoder'"),
        ({"except_": ("head",)}, "Agent has no network 'head'.* It has tstep_encoder, traj_encoder, popart"),
    ],
)
def test_unknown_networks_are_errors(arguments: Any, message: str, make_experiment: Made) -> None:
    teacher = trained(make_experiment)
    with pytest.raises(ValueError, match=message):
        load_policy_weights(teacher.policy, teacher.run_dir, **arguments)
    with pytest.raises(ValueError, match="no network 'head'"):
        teacher.policy.freeze("head")


class FineTuning(Experiment):
    """Loads a teacher's encoders, freezes one, and gives the actor a rate of its own."""

    teacher: Path
    frozen: tuple[str, ...] = ("tstep_encoder",)

    def init_agent(self) -> BaseAgent:
        agent = super().init_agent()
        load_policy_weights(agent, self.teacher, only=("tstep_encoder", "traj_encoder"))
        agent.freeze(*self.frozen)
        return agent

    def init_optimizer(self, policy: BaseAgent) -> torch.optim.Optimizer:
        groups = parameter_groups(policy, self.learning_rate, {"traj_encoder": 1e-5, "actor": 3e-4})
        return make_adamw(groups, self.learning_rate, self.l2_coeff, self.DEVICE)


@pytest.fixture
def finetuning(make_experiment: Made) -> Callable[..., FineTuning]:
    """Makes fine-tuning runs whose rates fall; the frozen encoder has running statistics of its inputs."""
    teacher = trained(make_experiment)

    def make(folder: str, **changes: Any) -> FineTuning:
        arguments = {
            "traj_encoder_type": GRUTrajEncoder,
            "seed": 5,
            "lr_warmup_steps": 2,
            "epochs": 4,
            **changes,
        }
        experiment = make_experiment(folder, cls=FineTuning, callbacks=[LinearDecay(16, 0.25)], **arguments)
        assert isinstance(experiment, FineTuning)
        experiment.teacher = teacher.run_dir
        return experiment

    return make


def test_frozen_networks_keep_weights_and_statistics_and_get_no_optimizer_state(
    finetuning: Callable[..., FineTuning],
) -> None:
    experiment = finetuning("student")
    experiment.start()
    before = copies(experiment.policy)
    experiment.learn()
    after = experiment.policy.state_dict()
    assert changed(before, after) == {
        *("traj_encoder", "actor", "critics", "popart", "target_actor", "target_critics")
    }
    assert not experiment.policy.tstep_encoder.training
    assert experiment.policy.traj_encoder.training
    frozen = set(experiment.policy.tstep_encoder.parameters())
    optimised = {p for group in experiment.optimizer.param_groups for p in group["params"]}
    assert frozen.isdisjoint(optimised)
    assert set(experiment.optimizer.state) == optimised
    assert optimised == {p for p in experiment.policy.parameters() if p.requires_grad}


def test_a_frozen_actor_is_what_its_target_approaches(finetuning: Callable[..., FineTuning]) -> None:
    experiment = finetuning("student", epochs=1)
    experiment.frozen = ("critics", "actor")
    with pytest.raises(ValueError, match=r"rates names \['actor'\], which have no parameters to train"):
        experiment.start()
    experiment = finetuning("other", epochs=1)
    experiment.frozen = ("critics",)
    experiment.start()
    agent = experiment.policy
    assert isinstance(agent, Agent)
    with torch.no_grad():
        for parameter in agent.target_critics.parameters():
            parameter.add_(1.0)
    before, online = copies(agent.target_critics), copies(agent.critics)  # type: ignore[arg-type]
    experiment.learn()
    steps = experiment.counters.gradient_steps
    for name, weight in agent.target_critics.state_dict().items():
        left = (1 - agent.tau) ** steps
        torch.testing.assert_close(weight, online[name] + left * (before[name] - online[name]))
        assert torch.equal(agent.critics.state_dict()[name], online[name])


def test_each_network_has_its_rate_and_schedules_scale_them_all(
    finetuning: Callable[..., FineTuning],
) -> None:
    experiment = finetuning("student", learning_rate=1e-3)
    experiment.start()
    factors = []
    for _ in range(16):
        rates = {group["name"]: group["lr"] for group in experiment.optimizer.param_groups}
        assert rates["traj_encoder"] == pytest.approx(rates["other"] * 1e-2)
        assert rates["actor"] == pytest.approx(rates["other"] * 0.3)
        factors.append(rates["other"] / 1e-3)
        experiment.optimizer.step()
        experiment.lr_schedule.step()
    expected = [min(1.0, (u + 1) / 2) * (1 - u / 16 * 0.75) for u in range(16)]
    assert factors == pytest.approx(expected)


def test_a_resumed_run_is_that_of_one_never_stopped(finetuning: Callable[..., FineTuning]) -> None:
    whole = finetuning("whole", ckpt_interval=1)
    whole.start()
    whole.learn()
    first = finetuning("halves", ckpt_interval=1, epochs=2)
    first.start()
    first.learn()
    first.close()
    second = finetuning("halves", ckpt_interval=1, resume=True)
    second.start()
    assert second.epoch == 2
    second.learn()
    assert changed(copies(whole.policy), second.policy.state_dict()) == set()
    for ours, theirs in zip(whole.optimizer.param_groups, second.optimizer.param_groups, strict=True):
        assert (ours["name"], ours["lr"]) == (theirs["name"], theirs["lr"])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"actors": 1e-3}, "no network 'actors'. Did you mean 'actor'"),
        ({"actor": 0.0}, r"rates\['actor'\] is 0.0, must be positive and finite; freeze"),
        ({"target_actor": 1e-3}, r"rates names \['target_actor'\], which have no parameters to train"),
    ],
)
def test_wrong_rates_are_named(rates: dict[str, float], message: str, make_experiment: Made) -> None:
    with pytest.raises(ValueError, match=message):
        parameter_groups(new_agent(make_experiment), 1e-3, rates)


def test_the_longest_name_counts(make_experiment: Made) -> None:
    groups = parameter_groups(
        new_agent(make_experiment), 1e-3, {"traj_encoder": 1e-4, "traj_encoder.rnn": 1e-5}
    )
    assert [(group["name"], group["lr"]) for group in groups] == [
        *(("other", 1e-3), ("traj_encoder", 1e-4), ("traj_encoder.rnn", 1e-5))
    ]
    assert len(groups[2]["params"]) == 8  # two layers of four
