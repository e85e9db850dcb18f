"""Custom encoders, heads, distributions and agents: registered, configured by gin, trained and evaluated.

Also the methods that a subclass of Agent overrides, each by its effect on a run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

import amago
from amago import Experiment
from amago.agent import Agent, Batch
from amago.cli_utils import switch_agent, switch_traj_encoder, switch_tstep_encoder, use_config
from amago.nets.actor_critic import BaseActorHead, BaseCriticHead, gammas_as_input_seq
from amago.nets.policy_dists import PolicyOutput

MakeExperiment = Callable[..., Experiment]


@gin.configurable
class OwnTstepEncoder(amago.TstepEncoder):
    """One linear layer over observation and rl2s."""

    def __init__(self, obs_space: Any, rl2_space: Any, width: int = 6) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        self.layer = nn.Linear(obs_space["observation"].shape[0] + rl2_space.shape[0], width)
        self.width = width

    @property
    def emb_dim(self) -> int:
        return self.width

    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        return torch.tanh(self.layer(torch.cat((obs["observation"], rl2s), dim=-1)))


@gin.configurable
class LeakyMemory(amago.TrajEncoder):
    """Remembers a decaying sum of all that it has seen; its hidden state is that sum, (B, D)."""

    def __init__(self, tstep_dim: int, max_seq_len: int, memory_size: int = 8, decay: float = 0.5) -> None:
        super().__init__(tstep_dim=tstep_dim, max_seq_len=max_seq_len)
        self.inp = nn.Linear(tstep_dim, memory_size)
        self.decay = decay

    @property
    def emb_dim(self) -> int:
        return self.inp.out_features

    def init_hidden_state(self, batch_size: int, device: Any) -> Tensor:
        return torch.zeros(batch_size, self.emb_dim, device=device)

    def reset_hidden_state(self, hidden_state: Tensor, dones: Any) -> Tensor:
        hidden_state[torch.as_tensor(dones, dtype=torch.bool)] = 0.0
        return hidden_state

    def forward(
        self, seq: Tensor, time_idxs: Tensor, hidden_state: Any = None, log_dict: Any = None
    ) -> tuple[Tensor, Any]:
        new = self.inp(seq)
        memory = torch.zeros_like(new[:, 0]) if hidden_state is None else hidden_state
        steps = []
        for step in new.unbind(dim=1):
            memory = self.decay * memory + step
            steps.append(memory)
        return torch.stack(steps, dim=1), memory


@gin.configurable
class OwnActor(BaseActorHead):
    """One hidden layer, and the observation as it is if that is passed on."""

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        discrete: bool,
        gammas: Any,
        hidden: int = 5,
        direct_width: int = 0,
        discrete_dist_type: Any = amago.nets.policy_dists.Discrete,
        continuous_dist_type: Any = amago.nets.policy_dists.TanhGaussian,
    ) -> None:
        super().__init__(
            state_dim,
            action_dim,
            discrete,
            gammas,
            continuous_dist_type,
            discrete_dist_type=discrete_dist_type,
        )
        self.hidden = nn.Linear(state_dim + direct_width, hidden)
        self.out = nn.Linear(hidden, self.num_gammas * self.policy_dist.input_dimension)
        self.seen: list[Any] = []

    def actor_network_forward(
        self, state: Tensor, log_dict: Any = None, straight_from_obs: dict[str, Tensor] | None = None
    ) -> Tensor:
        self.seen.append(straight_from_obs)
        if straight_from_obs is not None:
            state = torch.cat((state, *straight_from_obs.values()), dim=-1)
        return self.split_gammas(self.out(torch.relu(self.hidden(state))))


@gin.configurable
class OwnCritics(BaseCriticHead):
    """Critics that see state, action and discount, as one network with an output for each critic."""

    def __init__(
        self, state_dim: int, action_dim: int, discrete: bool, gammas: Any, num_critics: int, width: int = 7
    ) -> None:
        super().__init__(state_dim, action_dim, discrete, gammas, num_critics)
        self.hidden = nn.Linear(state_dim + action_dim + 1, width)
        self.out = nn.Linear(width, num_critics)

    def critic_network_forward(self, state: Tensor, action: Tensor, log_dict: Any = None) -> Tensor:
        samples, batch, length, discounts, _ = action.shape
        gammas = gammas_as_input_seq(self.gammas, batch, length).to(action).expand(samples, -1, -1, -1, -1)
        states = state[None, :, :, None].expand(samples, -1, -1, discounts, -1)
        hidden = torch.relu(self.hidden(torch.cat((states, action, gammas), dim=-1)))
        return self.out(hidden).transpose(-1, -2).unsqueeze(-1)  # (K, B, L, C, G, 1)


class Sharpened(PolicyOutput):
    """A categorical policy with logits that are twice as large."""

    @property
    def actions_differentiable(self) -> bool:
        return True

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def input_dimension(self) -> int:
        return self.d_action

    def forward(self, vec: Tensor, log_dict: Any = None) -> Distribution:
        return Categorical(logits=2.0 * vec)


@gin.configurable
class OwnAgent(Agent):
    """Predicts the reward besides, with a network of its own, and records what its hooks were told."""

    def __init__(self, *args: Any, prediction_weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prediction_weight = prediction_weight
        self.loaded: list[bool] = []

    def init_extra_networks(self) -> None:
        self.predictor = nn.Linear(self.state_dim, 1)

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        loss = super().forward(batch, log_step)
        predicted = self.predictor(self.encode_batch(batch)[:, :-1])
        error = F.mse_loss(predicted[batch.transition_mask], batch.rews[batch.transition_mask])
        return loss + self.prediction_weight * error

    def on_checkpoint_loaded(self, is_resume: bool = False) -> None:
        self.loaded.append(is_resume)


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    """Under names that other tests, which ask for all names when they are collected, do not meet."""
    amago.register_tstep_encoder("test_own_tstep")(OwnTstepEncoder)
    amago.register_traj_encoder("test_own_traj")(LeakyMemory)
    amago.register_agent("test_own_agent")(OwnAgent)


def trained(experiment: Experiment) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before and after a short run, which acts, learns and is evaluated."""
    experiment.start()
    before = {name: x.clone() for name, x in experiment.policy.state_dict().items()}
    experiment.learn()
    metrics = experiment.evaluate_test(experiment.make_val_env, episodes=3)
    assert experiment.counters.gradient_steps == 8
    assert "Average Total Return in memory" in metrics
    return before, experiment.policy.state_dict()


def moved(weights: tuple[dict[str, Tensor], dict[str, Tensor]], prefix: str) -> bool:
    """Whether every parameter whose name starts with `prefix` has changed."""
    before, after = weights
    names = [name for name in before if name.startswith(prefix)]
    return bool(names) and all(not torch.equal(before[name], after[name]) for name in names)


def test_a_custom_timestep_encoder_is_registered_and_configured_by_gin(
    make_experiment: MakeExperiment,
) -> None:
    config: dict[str, Any] = {}
    encoder = switch_tstep_encoder(config, "test_own_tstep", width=9)
    use_config(config, finalize=False)
    experiment = make_experiment(tstep_encoder_type=encoder)
    assert moved(trained(experiment), "tstep_encoder.layer.")
    assert experiment.policy.tstep_encoder.emb_dim == 9


def test_a_custom_trajectory_encoder_keeps_its_hidden_state(
    make_experiment: MakeExperiment,
) -> None:
    config: dict[str, Any] = {}
    encoder = switch_traj_encoder(config, "test_own_traj", memory_size=10, decay=0.25)
    use_config(config, finalize=False)
    experiment = make_experiment(traj_encoder_type=encoder)
    assert moved(trained(experiment), "traj_encoder.inp.")
    memory = experiment.policy.traj_encoder
    assert (memory.emb_dim, memory.decay) == (10, 0.25)
    sequence, times = torch.randn(2, 6, memory.tstep_dim), torch.arange(6).view(1, 6, 1).expand(2, -1, -1)
    whole, _ = memory(sequence, times)
    hidden, steps = memory.init_hidden_state(2, "cpu"), []
    for now in range(6):
        step, hidden = memory(sequence[:, now : now + 1], times[:, now : now + 1], hidden_state=hidden)
        steps.append(step)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


@pytest.mark.parametrize("online_coeff", [0.0, 1.0])
def test_custom_critics_are_configured_by_gin(make_experiment: MakeExperiment, online_coeff: float) -> None:
    settings = {"Agent.critic_type": OwnCritics, "OwnCritics.width": 12, "Agent.online_coeff": online_coeff}
    use_config(settings, finalize=False)
    experiment = make_experiment()
    weights = trained(experiment)
    assert moved(weights, "critics.")
    assert moved(weights, "actor.")
    assert experiment.policy.critics.hidden.out_features == 12


def test_custom_encoders_heads_and_agent_train_together(make_experiment: MakeExperiment) -> None:
    use_config(
        {
            "OwnAgent.actor_type": OwnActor,
            "OwnAgent.critic_type": OwnCritics,
            "OwnActor.hidden": 11,
            "OwnActor.discrete_dist_type": Sharpened,
        },
        finalize=False,
    )
    experiment = make_experiment(
        tstep_encoder_type=OwnTstepEncoder, traj_encoder_type=LeakyMemory, agent_type=OwnAgent
    )
    weights = trained(experiment)
    for module in (
        "tstep_encoder.layer.",
        "traj_encoder.inp.",
        "actor.",
        "critics.",
        "target_",
        "predictor.",
    ):
        assert moved(weights, module)
    policy = experiment.policy
    assert policy.actor.hidden.out_features == policy.target_actor.hidden.out_features == 11
    assert isinstance(policy.actor.policy_dist, Sharpened)


def test_extra_networks_of_a_custom_agent_are_trained_saved_and_loaded(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    config: dict[str, Any] = {}
    agent = switch_agent(config, "test_own_agent", prediction_weight=2.0, tau=0.5)
    use_config(config, finalize=False)
    experiment = make_experiment(agent_type=agent)
    assert moved(trained(experiment), "predictor.")
    assert (experiment.policy.prediction_weight, experiment.policy.tau) == (2.0, 0.5)
    saved = torch.load(experiment.run_dir / "ckpts" / "latest" / "policy.pt", weights_only=True)
    assert torch.equal(saved["predictor.weight"], experiment.policy.predictor.weight)
    again = make_experiment("again", agent_type=agent)
    again.start()
    again.load_checkpoint_from_path(
        experiment.run_dir / "ckpts" / "latest" / "policy.pt", is_accelerate_state=False
    )
    assert torch.equal(again.policy.predictor.weight, experiment.policy.predictor.weight)


def test_on_checkpoint_loaded_is_called(make_experiment: MakeExperiment) -> None:
    first = make_experiment(agent_type=OwnAgent, ckpt_interval=1)
    first.start()
    assert first.policy.loaded == []
    first.learn()
    first.load_checkpoint(0, resume_training_state=False)
    first.read_latest_policy()
    assert first.policy.loaded == [False, False]
    first.close()
    resumed = make_experiment(agent_type=OwnAgent, ckpt_interval=1, resume=True)
    resumed.start()
    assert resumed.policy.loaded == [True]


def test_observations_are_passed_to_the_actor_in_rollouts_and_training(
    make_experiment: MakeExperiment,
) -> None:
    settings = {
        "Agent.actor_type": OwnActor,
        "OwnActor.direct_width": 3,
        "Agent.pass_obs_keys_to_actor": ["observation"],
    }
    use_config(settings, finalize=False)
    experiment = make_experiment()
    assert moved(trained(experiment), "actor.")
    lengths = {seen["observation"].shape[1] for seen in experiment.policy.actor.seen}
    assert 1 in lengths, "a rollout acts on one step at a time"
    assert max(lengths) > 1, "training sees all transitions of a batch"
    assert all(set(seen) == {"observation"} for seen in experiment.policy.actor.seen)


class Ignores(Agent):
    """Counts no entry of a loss."""

    ignored = "actor"

    def edit_actor_mask(self, batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
        return pad_mask & (self.ignored != "actor")

    def edit_critic_mask(self, batch: Batch, critic_loss: Tensor, pad_mask: Tensor) -> Tensor:
        return pad_mask & (self.ignored != "critic")


class IgnoresCritics(Ignores):
    """The same for the critics."""

    ignored = "critic"


@pytest.mark.parametrize(("agent_type", "still"), [(Ignores, "actor."), (IgnoresCritics, "critics.")])
def test_edited_masks_exclude_losses(
    make_experiment: MakeExperiment, agent_type: type[Agent], still: str
) -> None:
    experiment = make_experiment(agent_type=agent_type, l2_coeff=0.0)
    weights = trained(experiment)
    learning = {"actor.": "critics.", "critics.": "actor."}[still]
    before, after = weights
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith(still))
    assert moved(weights, learning)


class WrongTstepWidth(OwnTstepEncoder):
    """Says another width than it has."""

    @property
    def emb_dim(self) -> int:
        return 5


class WrongTrajWidth(LeakyMemory):
    """Says another width than it has."""

    @property
    def emb_dim(self) -> int:
        return 5

    def init_hidden_state(self, batch_size: int, device: Any) -> Tensor:
        return torch.zeros(batch_size, self.inp.out_features, device=device)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"tstep_encoder_type": WrongTstepWidth}, r"WrongTstepWidth\.emb_dim is 5, but its output is 6 wide"),
        ({"traj_encoder_type": WrongTrajWidth}, r"WrongTrajWidth\.emb_dim is 5, but its output is 8 wide"),
    ],
)
def test_an_encoder_with_a_wrong_emb_dim_is_an_error(
    make_experiment: MakeExperiment, parts: dict[str, Any], message: str
) -> None:
    experiment = make_experiment(**parts)
    experiment.start()
    with pytest.raises(ValueError, match=message):
        experiment.learn()
