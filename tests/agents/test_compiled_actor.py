"""A compiled actor acts as its agent does, for every encoder, head and action space, and on current weights.

Sizes and settings are drawn from a fixed seed. Shapes: B rows.
"""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from amago import kernels
from amago.agent import Agent, MultiTaskAgent
from amago.agent.acting import compile_actor
from amago.nets.actor_critic import Actor, ResidualActor
from amago.nets.compiled_actor import CompiledActor
from amago.nets.policy_dists import GMM, Beta, Discrete
from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
)
from amago.nets.transformer import (
    ClippedSlidingSinkAttention,
    FlashAttention,
    SlidingWindowFlexAttention,
    TformerHiddenState,
    VanillaAttention,
)
from amago.nets.tstep_encoders import FFTstepEncoder

ROWS = 5
ACTIVATIONS = ("leaky_relu", "relu", "gelu", "mish")
NORMS = ("none", "layer", "rmsnorm", "unitball", "unitball-detach", "hypersphere", "simnorm")
SPACES = {
    "discrete": gym.spaces.Discrete(5),
    "multidiscrete": gym.spaces.MultiDiscrete([3, 4]),
    "box": gym.spaces.Box(-1.0, 1.0, (3,)),
    "multibinary": gym.spaces.MultiBinary(4),
}
WIDTHS = {"discrete": 5, "multidiscrete": 7, "box": 3, "multibinary": 4}
SMALL_TRANSFORMER = partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40)


def make_agent(
    traj_encoder: Any,
    action: str = "discrete",
    tstep: dict[str, Any] | None = None,
    agent_type: type[Agent] = Agent,
    window: int = 6,
    seed: int = 0,
    **kwargs: Any,
) -> Agent:
    torch.manual_seed(seed)
    agent = agent_type(
        obs_space=gym.spaces.Dict(
            {
                "b": gym.spaces.Box(-1.0, 1.0, (2, 2)),
                "a": gym.spaces.Box(0, 9, (3,), dtype=np.int64),
            }
        ),
        rl2_space=gym.spaces.Box(-np.inf, np.inf, (1 + WIDTHS[action],)),
        action_space=SPACES[action],
        max_seq_len=window,
        tstep_encoder_type=partial(FFTstepEncoder, **({"d_hidden": 24, "d_output": 16} | (tstep or {}))),
        traj_encoder_type=traj_encoder,
        **({"online_coeff": 0.0, "offline_coeff": 1.0} | kwargs),
    )
    with torch.no_grad():  # nothing at its neutral starting value
        for name, tensor in agent.state_dict().items():
            if name.endswith(
                ("in_norm.mu", "norm.weight", "norm.bias", "norm.scale", "gamma", "head_scaler")
            ):
                tensor.add_(0.2 * torch.randn_like(tensor))
            if name.endswith("in_norm.nu"):
                tensor.copy_(1.5 + torch.rand_like(tensor))
    return agent.eval()


def make_inputs(agent: Agent, rows: int, time: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    obs = {"a": torch.randint(0, 10, (rows, 1, 3)), "b": torch.randn(rows, 1, 2, 2)}
    return obs, torch.randn(rows, 1, 1 + agent.action_spec.dim), time.view(rows, 1, 1)


def compiled(agent: Agent) -> CompiledActor:
    actor = compile_actor(agent)
    assert actor is not None
    return actor


def refusing_modules(agent: Agent) -> Agent:
    """The agent with modules that raise, so that only its compiled form can act; to be called after compiling."""
    agent.traj_encoder.forward = None
    return agent


class Parameters:
    """A distribution without a C++ counterpart, whose mean is the vector of its parameters."""

    is_discrete = False
    actions_differentiable = False

    def __init__(self, dist: Any) -> None:
        self.input_dimension = dist.input_dimension

    def __call__(self, vec: Tensor, log_dict: Any = None) -> Any:
        self.mean = vec
        return self


def tensors_of(hidden_state: Any) -> list[Tensor]:
    if isinstance(hidden_state, TformerHiddenState):
        return [hidden_state.key_cache.data, hidden_state.val_cache.data, hidden_state.seq_lens]
    return [leaf for leaf in tree_leaves(hidden_state) if leaf is not None]


def assert_same_episodes(agent: Agent, steps: int = 14, rows: int = ROWS, tolerance: float = 1e-5) -> None:
    """Compares the parameters of the policy and the hidden states over steps with resets of random rows."""
    agent.actor.policy_dist = Parameters(agent.actor.policy_dist)
    object.__setattr__(agent.action_spec, "kind", "box")  # so that the mean is returned
    compiled_agent = copy.deepcopy(agent)
    actor = compiled(compiled_agent)
    refusing_modules(compiled_agent)
    draws = random.Random(3)
    ours, theirs = agent.init_hidden_state(rows, "cpu"), agent.init_hidden_state(rows, "cpu")
    time = torch.zeros(rows, dtype=torch.int64)
    for _ in range(steps):
        inputs = make_inputs(agent, rows, time)
        got, ours = actor.get_actions(*inputs, ours, sample=False)
        expected, theirs = agent.get_actions(*inputs, theirs, sample=False)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
        for tensor, other in zip(tensors_of(ours), tensors_of(theirs), strict=True):
            torch.testing.assert_close(tensor, other, atol=tolerance, rtol=tolerance)
        time = time + 1
        dones = torch.tensor([draws.random() < 0.15 for _ in range(rows)])
        ours, theirs = agent.reset_hidden_state(ours, dones), agent.reset_hidden_state(theirs, dones)
        time[dones] = 0


def transformer(seed: int) -> Any:
    """A Transformer of random settings."""
    draw = random.Random(seed)
    heads = draw.choice((1, 2, 3, 4))
    dim = draw.choice((8, 16, 32)) if seed % 2 else draw.choice((2, 6, 10))
    width = heads * dim
    norms = [n for n in NORMS if n != "simnorm" or width % 8 == 0]
    return partial(
        TformerTrajEncoder,
        d_model=width,
        n_heads=heads,
        d_ff=draw.choice((8, 40, 72)),
        n_layers=draw.choice((1, 2, 3)),
        activation=draw.choice(ACTIVATIONS),
        norm=draw.choice(norms),
        pos_emb=draw.choice(("fixed", "rope")),
        sigma_reparam=draw.random() < 0.5,
        normformer_norms=draw.random() < 0.5,
        head_scaling=draw.random() < 0.5,
        attention_type=draw.choice(
            (
                FlashAttention,
                VanillaAttention,
                partial(FlashAttention, window_size=(3, 0)),
                partial(SlidingWindowFlexAttention, window_size=2),
                partial(
                    ClippedSlidingSinkAttention, window_size=2, sink_size=2, sink_bias=0.7, logit_clip=1.5
                ),
            )
        ),
    )


@pytest.mark.parametrize("seed", range(8))
def test_transformers_act_the_same(seed):
    assert_same_episodes(make_agent(transformer(seed), seed=seed))


def test_a_transformer_with_a_long_window_acts_the_same():
    assert_same_episodes(make_agent(partial(TformerTrajEncoder, d_model=128), window=20), steps=45, rows=3)


@pytest.mark.parametrize("seed", range(3))
def test_grus_act_the_same(seed):
    draw = random.Random(seed)
    sizes = {"d_hidden": draw.choice((3, 16, 33)), "d_output": draw.choice((8, 40)), "n_layers": 1 + seed % 3}
    assert_same_episodes(make_agent(partial(GRUTrajEncoder, norm=draw.choice(NORMS[:6]), **sizes), seed=seed))


@pytest.mark.parametrize(
    "sizes",
    [
        {"d_model": 32},
        {"d_model": 24, "d_state": 5, "d_conv": 2, "n_layers": 1, "norm": None},
        {"d_model": 20, "d_state": 32, "d_conv": 1, "expand": 3, "n_layers": 2, "norm": "rmsnorm"},
    ],
)
def test_mambas_act_the_same(sizes):
    assert_same_episodes(make_agent(partial(MambaTrajEncoder, **sizes)), steps=30)


@pytest.mark.parametrize(("norm", "activation"), list(zip(NORMS, 2 * ACTIVATIONS, strict=False)))
def test_feed_forward_networks_act_the_same(activation, norm):
    encoder = partial(
        FFTrajEncoder, d_model=24, d_ff=40, n_layers=2, norm=norm, out_norm=norm, activation=activation
    )
    settings = {"norm": norm, "out_norm": norm, "activation": activation, "symlog_inputs": norm == "layer"}
    assert_same_episodes(make_agent(encoder, tstep=settings), steps=3)


@pytest.mark.parametrize(
    "settings",
    [{"hide_rl2s": True}, {"normalize_inputs": False}, {"specify_obs_keys": ["b"]}, {"n_layers": 3}],
)
def test_timestep_encoders_act_the_same(settings):
    assert_same_episodes(make_agent(IdentityTrajEncoder, tstep=settings), steps=3)


def test_a_timestep_encoder_that_hides_rewards_acts_the_same():
    agent = make_agent(IdentityTrajEncoder)
    agent.tstep_encoder.hide_rewards = True
    assert_same_episodes(agent, steps=3)


class OwnEncoder(FFTstepEncoder):
    """Computes something else than its parent."""

    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        return 2.0 * super().inner_forward(obs, rl2s, log_dict=log_dict)


class OwnChoice(Discrete):
    """A distribution of the user's, over the reversed logits."""

    def forward(self, vec: Tensor, log_dict: Any = None) -> Any:
        return super().forward(-vec, log_dict)


def test_a_timestep_encoder_without_a_translation_runs_as_a_module():
    agent = make_agent(partial(GRUTrajEncoder, d_hidden=16))
    agent.tstep_encoder = OwnEncoder(agent.obs_space, agent.rl2_space, d_hidden=24, d_output=16).eval()
    assert_same_episodes(agent, steps=5)


@pytest.mark.parametrize("rows", [1, 13, 131])
def test_every_number_of_rows_acts_the_same(rows):
    assert_same_episodes(make_agent(SMALL_TRANSFORMER), steps=4, rows=rows)


def test_any_number_of_threads_gives_the_same_actions():
    agent = make_agent(SMALL_TRANSFORMER, "box")
    inputs = make_inputs(agent, 200, torch.zeros(200, dtype=torch.int64))
    actor, before, actions = compiled(agent), torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            actions.append(actor.get_actions(*inputs, agent.init_hidden_state(200, "cpu"), sample=False)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(actions[0], actions[1])
    assert torch.equal(actions[0], actions[2])


@pytest.mark.parametrize(("agent_type", "actor_type"), [(Agent, Actor), (MultiTaskAgent, ResidualActor)])
@pytest.mark.parametrize("action", SPACES)
def test_the_most_likely_action_is_the_same(action, agent_type, actor_type):
    encoder = partial(GRUTrajEncoder, d_hidden=16)
    agent = make_agent(encoder, action, agent_type=agent_type, actor_type=actor_type)
    inputs = make_inputs(agent, 64, torch.zeros(64, dtype=torch.int64))
    expected, _ = agent.get_actions(*inputs, sample=False)
    actor = compiled(agent)
    refusing_modules(agent)
    got, _ = actor.get_actions(*inputs, sample=False)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def one_input_many_times(agent: Agent, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    obs, rl2s, time = make_inputs(agent, 1, torch.zeros(1, dtype=torch.int64))
    many = {key: x.expand(rows, *x.shape[1:]) for key, x in obs.items()}
    return many, rl2s.expand(rows, -1, -1), time.expand(rows, -1, -1)


@pytest.mark.parametrize("dist", [GMM, Beta])
def test_other_distributions_are_sampled_by_torch(dist):
    agent = make_agent(IdentityTrajEncoder, "box", actor_type=partial(Actor, continuous_dist_type=dist))
    inputs = one_input_many_times(agent, 4000)
    got, expected = compiled(agent).get_actions(*inputs)[0], agent.get_actions(*inputs)[0]
    torch.testing.assert_close(got.mean(0), expected.mean(0), atol=0.06, rtol=0.0)


@pytest.mark.parametrize("action", ["discrete", "multidiscrete"])
def test_sampled_choices_have_the_frequencies_of_the_policy(action):
    rows = 40_000
    agent = make_agent(IdentityTrajEncoder, action)
    with torch.no_grad():
        agent.actor.base.out_layer.weight.mul_(20.0)  # some probabilities fall below the floor
    inputs = one_input_many_times(agent, rows)
    actions, _ = compiled(agent).get_actions(*inputs)
    with torch.no_grad():
        states, _ = agent.get_state_embedding(*inputs)
        components = agent.actor(states).probs[0, 0, -1].split(agent.action_spec.sizes)
    for component, probs in enumerate(components):
        counts = torch.bincount(actions[:, 0, component], minlength=len(probs))
        deviation = (rows * probs * (1 - probs)).sqrt()
        assert ((counts - rows * probs).abs() < 5 * deviation + 1).all()


def test_sampled_box_actions_have_the_moments_of_the_policy():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = one_input_many_times(agent, 40_000)
    actions, _ = compiled(agent).get_actions(*inputs)
    with torch.no_grad():
        states, _ = agent.get_state_embedding(*inputs)
        dist = agent.actor(states).base
    u = torch.atanh(actions[:, 0].double().clamp(-1 + 1e-7, 1 - 1e-7))
    torch.testing.assert_close(u.mean(0).float(), dist.loc[0, 0, -1], atol=0.02, rtol=0.0)
    torch.testing.assert_close(u.std(0).float(), dist.scale[0, 0, -1], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_sampled_actions_depend_on_torchs_seed_alone(action):
    agent = make_agent(SMALL_TRANSFORMER, action)
    actor, runs = compiled(agent), []
    for _ in range(2):
        torch.manual_seed(7)
        hidden, drawn = agent.init_hidden_state(ROWS, "cpu"), []
        for step in range(9):
            actions, hidden = actor.get_actions(*make_inputs(agent, ROWS, torch.full((ROWS,), step)), hidden)
            drawn.append(actions)
        runs.append(torch.stack(drawn))
    assert torch.equal(*runs)
    assert runs[0].unique().numel() > 1


def fused_step(agent: Agent) -> None:
    optimizer = torch.optim.AdamW(agent.parameters(), lr=0.05, fused=True)
    for parameter in agent.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def write_in_place(agent: Agent) -> None:
    agent.actor.base.out_layer.bias.data += 1.0 + torch.rand(agent.actor.base.out_layer.bias.shape)


def replace_layer(agent: Agent) -> None:
    agent.actor.base.out_layer = copy.deepcopy(agent.actor.base.out_layer)
    write_in_place(agent)


def change_setting(agent: Agent) -> None:
    agent.tstep_encoder.hide_rl2s = True


@pytest.mark.parametrize("change", [fused_step, write_in_place, replace_layer, change_setting])
def test_refresh_uses_current_weights_and_settings(change):
    agent = make_agent(SMALL_TRANSFORMER, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    actor = compiled(agent)

    def act(how: Any) -> Tensor:
        actions: Tensor = how.get_actions(*inputs, agent.init_hidden_state(ROWS, "cpu"), sample=False)[0]
        return actions

    before = act(actor)
    change(agent)
    assert torch.equal(act(actor), before)  # a copy of the weights
    assert actor.refresh()
    torch.testing.assert_close(act(actor), act(agent), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(act(actor), before, atol=1e-3)


def test_an_agent_that_can_no_longer_be_compiled_acts_by_its_modules():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    actor = compiled(agent)
    agent.actor.base.activation = nn.Tanh()
    assert not actor.refresh()
    assert actor.reason is not None
    assert "Tanh" in actor.reason
    got, expected = (how.get_actions(*inputs, sample=False)[0] for how in (actor, agent))
    assert torch.equal(got, expected)


class OwnActions(Agent):
    def get_actions(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        return super().get_actions(*args, **kwargs)


class OwnStates(Agent):
    def get_state_embedding(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        states, hidden_state = super().get_state_embedding(*args, **kwargs)
        return -states, hidden_state


class OwnTrajEncoder(IdentityTrajEncoder):
    """Might compute something else than its parent."""


class OwnActor(Actor):
    """Might compute something else than its parent."""


class OwnDiscrete(Discrete):
    """Might compute something else than its parent."""


def overridden_on_the_instance(agent: Agent) -> None:
    agent.get_actions = partial(Agent.get_actions, agent)


def hooked(agent: Agent) -> None:
    agent.actor.base.in_layer.register_forward_hook(lambda module, inputs, output: -output)


def parametrized(agent: Agent) -> None:
    nn.utils.parametrizations.weight_norm(agent.actor.base.in_layer)


def patched(agent: Agent) -> None:
    agent.actor.base.forward = lambda state: state


def other_activation(agent: Agent) -> None:
    agent.actor.base.activation = nn.Tanh()


@pytest.mark.parametrize(
    "change",
    [overridden_on_the_instance, hooked, parametrized, patched, other_activation, Agent.train, Agent.double],
    ids=lambda f: f.__name__,
)
def test_changed_agents_are_not_compiled(change):
    agent = make_agent(IdentityTrajEncoder, "box")
    change(agent)
    assert compile_actor(agent) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"agent_type": OwnActions},
        {"agent_type": OwnStates},
        {"traj_encoder": OwnTrajEncoder},
        {"traj_encoder": partial(MambaTrajEncoder, backend="torch")},
        {"actor_type": OwnActor},
        {"pass_obs_keys_to_actor": ["a"]},
    ],
    ids=str,
)
def test_agents_with_modules_of_other_classes_are_not_compiled(settings):
    assert compile_actor(make_agent(**({"traj_encoder": IdentityTrajEncoder} | settings))) is None


def test_user_distribution_is_sampled_by_torch():
    agent = make_agent(IdentityTrajEncoder, actor_type=partial(Actor, discrete_dist_type=OwnDiscrete))
    inputs = make_inputs(agent, 64, torch.zeros(64, dtype=torch.int64))
    got, expected = (how.get_actions(*inputs, sample=False)[0] for how in (compiled(agent), agent))
    assert torch.equal(got, expected)


def test_autocast_global_hooks_and_other_backends_prevent_compilation():
    agent = make_agent(IdentityTrajEncoder, "box")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compile_actor(agent) is None
    with kernels.use_backend("eager"):
        assert compile_actor(agent) is None
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert compile_actor(agent) is None
    finally:
        hook.remove()
    assert compile_actor(agent) is not None


def test_inputs_that_do_not_fit_run_through_the_modules():
    agent = make_agent(SMALL_TRANSFORMER, "box")
    actor = compiled(agent)
    steps = [make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64)) for _ in range(2)]
    obs = {key: torch.cat([step[0][key] for step in steps], dim=1) for key in steps[0][0]}
    rl2s, time = (torch.cat([step[i] for step in steps], dim=1) for i in (1, 2))
    assert actor.get_actions(obs, rl2s, time, sample=False)[0].shape == (ROWS, 2, 3)  # two timesteps
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = (how.get_actions(*steps[0], sample=False)[0] for how in (actor, agent))
    assert torch.equal(got, expected)
    with pytest.raises(ValueError, match="3"):  # a hidden state of other rows
        actor.get_actions(*steps[0], agent.init_hidden_state(3, "cpu"))
    with pytest.raises(KeyError):
        actor.get_actions({"a": steps[0][0]["a"]}, *steps[0][1:], agent.init_hidden_state(ROWS, "cpu"))


def test_sampling_from_non_finite_probabilities_raises():
    agent = make_agent(IdentityTrajEncoder)
    obs, rl2s, time = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    obs["b"][2] = torch.nan
    with pytest.raises(RuntimeError, match="not finite"):
        compiled(agent).get_actions(obs, rl2s, time)


def test_a_step_without_a_learned_position_raises():
    gin.bind_parameter("LearnablePosEmb.max_time_idx", 4)
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, pos_emb="learned"))
    actor, hidden = compiled(agent), agent.init_hidden_state(ROWS, "cpu")
    with pytest.raises(ValueError, match="max_time_idx"):
        actor.get_actions(*make_inputs(agent, ROWS, torch.full((ROWS,), 4)), hidden)
    assert_same_episodes(agent, steps=3)


@pytest.mark.parametrize("pos_emb", ["fixed", "rope"])
def test_positions_late_in_an_episode_are_the_same(pos_emb):
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, pos_emb=pos_emb), "box")
    actor = compiled(agent)
    for step in (1023, 1024, 5000, 1_000_000):
        inputs = make_inputs(agent, ROWS, torch.full((ROWS,), step))
        got, expected = (
            how.get_actions(*inputs, agent.init_hidden_state(ROWS, "cpu"), sample=False)[0]
            for how in (actor, agent)
        )
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_strided_inputs_are_read_correctly():
    agent = make_agent(IdentityTrajEncoder, "box")
    obs, rl2s, time = make_inputs(agent, 2 * ROWS, torch.zeros(2 * ROWS, dtype=torch.int64))
    every_second = ({key: x[::2] for key, x in obs.items()}, rl2s[::2], time[::2])
    got, expected = (how.get_actions(*every_second, sample=False)[0] for how in (compiled(agent), agent))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
