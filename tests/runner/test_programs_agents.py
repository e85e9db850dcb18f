"""Whole runs of programs that users write around agents and networks, on a game that refuses illegal actions."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from amago import Experiment, TrajEncoder, TstepEncoder
from amago.agent import Agent, Batch, MultiTaskAgent
from amago.cli_utils import switch_traj_encoder, use_config
from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv
from amago.nets.actor_critic import Actor
from amago.nets.policy_dists import Discrete, _Categorical
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder
from amago.nets.transformer import VanillaAttention
from amago.nets.tstep_encoders import MultiModalTstepEncoder, tstep_encoder_for

MakeExperiment = Callable[..., Experiment]
MOVES = 5


class CardGame(gym.Env[dict[str, np.ndarray], int]):
    """Rewards the highest of the legal moves; an illegal one is an error. No move is legal at the end."""

    def __init__(self, horizon: int = 12) -> None:
        self.horizon = horizon
        self.observation_space = gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(0.0, 1.0, (2,), np.float32),
                "illegal_actions": gym.spaces.MultiBinary(MOVES),
            }
        )
        self.action_space = gym.spaces.Discrete(MOVES)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        if self._illegal[action]:
            raise ValueError(f"move {action} is illegal")
        best = max(np.flatnonzero(self._illegal == 0))
        self._time += 1
        over = self._time == self.horizon
        info = {f"{AMAGO_ENV_LOG_PREFIX} Moves": self._time} if over else {}
        return self._obs(), float(action == best), over, False, info

    def _obs(self) -> dict[str, np.ndarray]:
        illegal = self.np_random.random(MOVES) < 0.5
        illegal[self.np_random.integers(MOVES)] = False
        self._illegal = (illegal | (self._time == self.horizon)).astype(np.int8)
        shown = np.array([self._time / self.horizon, 1.0], np.float32)
        return {"observation": shown, "illegal_actions": self._illegal}


def make_card_game() -> AMAGOEnv:
    return AMAGOEnv(CardGame(), env_name="cards")


@gin.configurable
class CardActor(Actor):
    """Sets the logits of illegal moves to -inf, in place."""

    def actor_network_forward(
        self, state: Tensor, log_dict: Any = None, straight_from_obs: Any = None
    ) -> Tensor:
        params = super().actor_network_forward(state, log_dict, straight_from_obs)
        mask = straight_from_obs["illegal_actions"].bool()
        params.masked_fill_(mask[:, :, None].repeat(1, 1, params.shape[2], 1), -float("inf"))
        return params


class Softer(Discrete):
    """A policy at twice the temperature."""

    def forward(self, vec: Tensor, log_dict: Any = None) -> _Categorical:
        return _Categorical(logits=vec / 2.0)


GAME = {
    "make_train_env": make_card_game,
    "make_val_env": make_card_game,
    "exploration_wrapper_type": None,
    "max_seq_len": 6,
}
MASKED = {"actor_type": CardActor, "pass_obs_keys_to_actor": ["illegal_actions"]}


def weights_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("agent", ["Agent", "MultiTaskAgent"])
@pytest.mark.parametrize("policy", [Discrete, Softer])
def test_a_run_with_a_masked_actor_never_plays_an_illegal_move(
    make_experiment: MakeExperiment, metrics_of: Any, agent: str, policy: type[Discrete]
) -> None:
    use_config(
        {
            f"{agent}.actor_type": CardActor,
            f"{agent}.pass_obs_keys_to_actor": ["illegal_actions"],
            f"{agent}.online_coeff": 1.0,
            "CardActor.discrete_dist_type": policy,
            "CardActor.d_hidden": 8,
        },
        finalize=False,
    )
    agent_type = {"Agent": Agent, "MultiTaskAgent": MultiTaskAgent}[agent]
    experiment = make_experiment(**GAME, agent_type=agent_type)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        experiment.start()
        before = weights_of(experiment.policy.actor)
        experiment.learn()
        experiment.evaluate_test(make_card_game, episodes=3)
    told = [str(w.message) for w in issued if "acts with its torch modules" in str(w.message)]
    assert len(told) == 1
    assert not torch.equal(before, weights_of(experiment.policy.actor))
    updates = metrics_of(experiment, "train-update")
    assert updates
    assert experiment.counters.skipped_updates == 0
    assert all(np.isfinite(update["metrics"]["Policy Entropy"]) for update in updates)


class Normalized:
    """Standardises advantages over the transitions that `train_step` chose."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.calls = 0

    def __call__(self, adv: Tensor) -> Tensor:
        assert self.mask is not None
        chosen = adv[self.mask.expand_as(adv)]
        self.calls += 1
        return torch.sigmoid((adv - chosen.mean()) / (chosen.std() + 1e-4)) * self.mask


class Chooses(Experiment):
    """Sets the mask of the filter before each update, and puts mask functions on the agent."""

    def init_model(self) -> None:
        super().init_model()
        self.edited = 0

        def edit_actor_mask(batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
            self.edited += 1
            return pad_mask & (batch.rews > -1.0).unsqueeze(-1)

        self.policy.edit_actor_mask = edit_actor_mask

    def train_step(self, batch: Batch, log_step: bool) -> Any:
        chosen = (batch.time_idxs[:, :-1] < 10) & ~(batch.rl2s == self.policy.pad_val).all(-1, True)[:, 1:]
        self.policy.fbc_filter_func.mask = chosen.unsqueeze(-1)  # (B, T, 1, 1)
        return super().train_step(batch, log_step)


def test_a_filter_whose_mask_is_set_in_train_step_and_a_mask_function(
    make_experiment: MakeExperiment,
) -> None:
    filter_func = Normalized()
    agent_type = partial(Agent, fbc_filter_func=filter_func, offline_coeff=1.0, **MASKED)
    experiment = make_experiment(cls=Chooses, **GAME, agent_type=agent_type)
    experiment.start()
    experiment.learn()
    assert filter_func.calls == experiment.edited == 8
    assert experiment.counters.skipped_updates == 0


class SlowAgent(Agent):
    """Acts by a slow copy; a frozen base policy and an extra actor stand beside."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, **MASKED)
        for name in ("tstep_encoder", "traj_encoder", "actor"):
            setattr(self, f"slow_{name}", copy.deepcopy(getattr(self, name)))
        self.base_actor = copy.deepcopy(self.actor)
        self.extra_actor = self.actor_type(self.state_dim, self.action_dim, self.discrete, self.gammas)
        self.loaded: list[bool] = []

    @property
    def trainable_params(self) -> Any:
        return itertools.chain(super().trainable_params, self.extra_actor.parameters())

    def soft_sync_targets(self) -> None:
        super().soft_sync_targets()
        for name in ("tstep_encoder", "traj_encoder", "actor"):
            self._ema_copy(getattr(self, f"slow_{name}"), getattr(self, name), tau=0.1)

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        loss = super().forward(batch, log_step)
        seq = self.tstep_encoder(obs=batch.obs, rl2s=batch.rl2s, log_dict=None)
        state, _ = self.traj_encoder(seq=seq, time_idxs=batch.time_idxs, hidden_state=None)
        direct = {"illegal_actions": batch.obs["illegal_actions"]}
        real = ~(batch.rl2s == self.pad_val).all(-1)
        extra = self.extra_actor(state, straight_from_obs=direct)
        base = self.base_actor(state, straight_from_obs=direct)
        distance = ((extra.probs - base.probs) ** 2).sum((-1, -2))[real].mean()
        if log_step:
            self.update_info["Extra Actor Loss"] = distance.item()
        return loss + distance

    def get_actions(
        self, obs: Any, rl2s: Tensor, time_idxs: Tensor, hidden_state: Any = None, sample: bool = True
    ) -> tuple[Tensor, Any]:
        seq = self.slow_tstep_encoder(obs=obs, rl2s=rl2s)
        state, hidden_state = self.slow_traj_encoder(seq, time_idxs=time_idxs, hidden_state=hidden_state)
        dists = self.slow_actor(state, straight_from_obs={"illegal_actions": obs["illegal_actions"]})
        actions = dists.sample() if sample else dists.probs.argmax(-1, keepdim=True)
        return actions[..., -1, :].to(torch.uint8), hidden_state

    def get_grad_norms(self) -> dict[str, Any]:
        return {**super().get_grad_norms(), "Extra Actor Grad Norm": 1.0}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> Any:
        own = any(name.startswith("slow_") for name in state_dict)
        return super().load_state_dict(state_dict, strict=strict and own)

    def on_checkpoint_loaded(self, is_resume: bool = False) -> None:
        self.loaded.append(is_resume)


def test_an_agent_with_slow_copies_and_an_extra_actor_trains_saves_and_resumes(
    make_experiment: MakeExperiment, metrics_of: Any
) -> None:
    settings = {**GAME, "agent_type": SlowAgent, "traj_encoder_type": GRUTrajEncoder, "ckpt_interval": 1}
    experiment = make_experiment(**settings)
    experiment.start()
    policy = experiment.policy
    names = ("actor", "extra_actor", "base_actor", "slow_actor", "slow_traj_encoder")
    before = {name: weights_of(getattr(policy, name)) for name in names}
    experiment.learn()
    moved = {name for name in names if not torch.equal(before[name], weights_of(getattr(policy, name)))}
    assert moved == set(names) - {"base_actor"}
    last = metrics_of(experiment, "train-update")[-1]["metrics"]
    assert last["Extra Actor Loss"] >= 0.0
    assert last["Extra Actor Grad Norm"] == 1.0
    experiment.close()

    resumed = make_experiment(**settings, resume=True)
    resumed.start()
    assert resumed.policy.loaded == [True]
    assert torch.equal(weights_of(resumed.policy), weights_of(policy))
    resumed.epochs = 3
    resumed.learn()
    assert resumed.counters.gradient_steps == 12


def test_a_slow_agent_starts_from_a_plain_agents_checkpoint(make_experiment: MakeExperiment) -> None:
    plain = make_experiment("plain", **GAME, agent_type=partial(Agent, **MASKED), ckpt_interval=1, epochs=1)
    plain.start()
    plain.learn()
    path = plain.run_dir / "ckpts" / "policy_weights" / "policy_epoch_0.pt"
    slow = make_experiment("slow", **GAME, agent_type=SlowAgent)
    slow.start()
    slow.load_checkpoint_from_path(path, is_accelerate_state=False)
    assert slow.policy.loaded == [False]
    assert torch.equal(weights_of(slow.policy.actor), weights_of(plain.policy.actor))


class ListsTwice(Agent):
    """Adds a network to the trained ones that is among them already."""

    def init_extra_networks(self) -> None:
        self.extra = nn.Linear(2, 2)

    @property
    def trainable_params(self) -> Any:
        return itertools.chain(super().trainable_params, self.extra.parameters(), self.actor.parameters())


def test_a_parameter_that_is_listed_twice_is_trained_once(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(agent_type=ListsTwice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        experiment.start()
    listed = experiment.optimizer.param_groups[0]["params"]
    assert len(listed) == len({id(p) for p in listed})
    experiment.learn()
    assert experiment.counters.gradient_steps == 8


class CompiledTstepEncoder(TstepEncoder):
    """A network compiled by the user, with an activation log."""

    def __init__(self, obs_space: Any, rl2_space: Any) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        self.layer = nn.Linear(obs_space["observation"].shape[0] + MOVES + rl2_space.shape[0], 8)

    @property
    def emb_dim(self) -> int:
        return 8

    @torch.compile(backend="aot_eager")
    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        from amago.nets.utils import add_activation_log

        out = self.layer(torch.cat((obs["observation"], obs["illegal_actions"].float(), rl2s), dim=-1))
        add_activation_log("compiled", out, log_dict)
        return torch.tanh(out)


def test_a_run_with_an_encoder_that_the_user_compiled(
    make_experiment: MakeExperiment, metrics_of: Any
) -> None:
    agent_type = partial(Agent, **MASKED)
    experiment = make_experiment(**GAME, agent_type=agent_type, tstep_encoder_type=CompiledTstepEncoder)
    experiment.start()
    before = weights_of(experiment.policy.tstep_encoder)
    experiment.learn()
    assert not torch.equal(before, weights_of(experiment.policy.tstep_encoder))
    assert "activation-compiled-max" in metrics_of(experiment, "train-update")[-1]["metrics"]


def test_learned_positions_and_an_attention_type_from_a_gin_file(
    make_experiment: MakeExperiment, tmp_path: Any
) -> None:
    """Episodes are longer than the context."""
    (tmp_path / "t.gin").write_text(
        "TformerTrajEncoder.attention_type = @amago.nets.transformer.VanillaAttention\n"
        "TformerTrajEncoder.pos_emb = 'learned'\n"
    )
    use_config({}, [tmp_path / "t.gin"], finalize=False)
    experiment = make_experiment(max_seq_len=3, traj_encoder_type=TformerTrajEncoder)
    experiment.start()
    experiment.learn()
    layer = experiment.policy.traj_encoder.tformer.layers[0].attention_layer
    assert type(layer.self_attention) is VanillaAttention


class LayersFirst(TrajEncoder):
    """An LSTM whose states are (layers, B, width), which its class does not say."""

    def __init__(self, tstep_dim: int, max_seq_len: int) -> None:
        super().__init__(tstep_dim=tstep_dim, max_seq_len=max_seq_len)
        self.lstm = nn.LSTM(tstep_dim, 6, num_layers=2, batch_first=True)

    @property
    def emb_dim(self) -> int:
        return 6

    def forward(self, seq: Tensor, time_idxs: Tensor, hidden_state: Any = None, log_dict: Any = None) -> Any:
        return self.lstm(seq, hidden_state)


class SaysSo(LayersFirst):
    """The same, declared."""

    hidden_batch_axis = 1


def test_a_state_with_its_batch_on_another_axis_ends_the_run_with_the_remedy(
    make_experiment: MakeExperiment,
) -> None:
    experiment = make_experiment(traj_encoder_type=LayersFirst)
    experiment.start()
    with pytest.raises(ValueError, match="class attribute hidden_batch_axis"):
        experiment.learn()
    declared = make_experiment("declared", traj_encoder_type=SaysSo)
    declared.start()
    declared.learn()


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_gru_is_another_name_for_rnn(name: str) -> None:
    config: dict[str, Any] = {}
    assert switch_traj_encoder(config, name, memory_size=16, layers=1) is GRUTrajEncoder
    selector = "amago.nets.traj_encoders.GRUTrajEncoder"
    sizes = {f"{selector}.d_hidden": 16, f"{selector}.d_output": 16, f"{selector}.n_layers": 1}
    assert config == sizes


class PictureGame(gym.Env[dict[str, np.ndarray], int]):
    """A 32 x 32 picture and a vector."""

    observation_space = gym.spaces.Dict(
        {
            "picture": gym.spaces.Box(0, 255, (32, 32, 3), np.uint8),
            "vector": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict]:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        self._time += 1
        return self._obs(), 1.0, self._time == 6, False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        picture = self.np_random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        return {"picture": picture, "vector": self.np_random.random(4).astype(np.float32)}


def test_a_small_picture_with_a_vector_is_trained_by_the_default_encoder(
    make_experiment: MakeExperiment,
) -> None:
    assert tstep_encoder_for(PictureGame.observation_space) == "multimodal"
    experiment = make_experiment(
        make_train_env=lambda: AMAGOEnv(PictureGame(), env_name="pictures"),
        make_val_env=lambda: AMAGOEnv(PictureGame(), env_name="pictures"),
        tstep_encoder_type=MultiModalTstepEncoder,
        epochs=1,
    )
    experiment.start()
    experiment.learn()
    assert experiment.counters.gradient_steps == 4
    assert sum(p.numel() for p in experiment.policy.tstep_encoder.parameters()) < 1_000_000
