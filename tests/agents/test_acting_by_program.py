"""Acting through a step program equals acting through the modules, also after something about them has changed.

Sizes and settings are drawn from a fixed seed. Shapes: B rows, A width of the action representation.
"""

from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from amago import kernels
from amago.agent import Agent, MultiTaskAgent
from amago.nets.actor_critic import Actor, ResidualActor
from amago.nets.policy_dists import GMM, Beta, Discrete
from amago.nets.stepping import Builder
from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
)
from amago.nets.traj_encoders.mamba import MambaHiddenState
from amago.nets.transformer import (
    ClippedSlidingSinkAttention,
    FlashAttention,
    SlidingWindowFlexAttention,
    VanillaAttention,
)
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder

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


def by_modules(agent: Agent, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
    """The same agent's actions without a program."""
    policy, agent._step_policy = agent._step_policy, Refusing()
    try:
        return agent.get_actions(*args, **kwargs)
    finally:
        agent._step_policy = policy


class Refusing:
    """Stands where no program can be made, as on a machine without a compiler."""

    def begin(self, *_: Any) -> None:
        return None


def with_parameters(agent: Agent) -> Agent:
    """Lets `get_actions` return the parameters of the last discount's policy, which say more than actions."""
    agent.actor.policy_dist = Raw(agent.actor.policy_dist)
    return agent


class Raw:
    """A distribution of no class that is known; its "mean" are its parameters."""

    is_discrete = False
    actions_differentiable = False

    def __init__(self, dist: Any) -> None:
        self.input_dimension = dist.input_dimension

    def __call__(self, vec: Tensor, log_dict: Any = None) -> Any:
        self.mean = self.probs = vec
        return self


def assert_same_episodes(agent: Agent, steps: int = 14, rows: int = ROWS, tolerance: float = 1e-5) -> None:
    """Parameters and hidden states of both ways agree over some steps in which rows are reset at random."""
    spec = agent.action_spec
    object.__setattr__(spec, "kind", "box")  # so that numbers come back
    with_parameters(agent)
    draws = random.Random(3)
    ours = agent.init_hidden_state(rows, "cpu")
    theirs = agent.init_hidden_state(rows, "cpu")
    time = torch.zeros(rows, dtype=torch.int64)
    for step in range(steps):
        inputs = make_inputs(agent, rows, time)
        got, ours = agent.get_actions(*inputs, ours, sample=False)
        assert agent._step_policy.steps == step + 1, agent._step_policy.reason
        expected, theirs = by_modules(agent, *inputs, theirs, sample=False)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
        assert_same_memory(ours, theirs, tolerance)
        time = time + 1
        dones = torch.tensor([draws.random() < 0.15 for _ in range(rows)])
        ours, theirs = agent.reset_hidden_state(ours, dones), agent.reset_hidden_state(theirs, dones)
        time[dones] = 0


def assert_same_memory(ours: Any, theirs: Any, tolerance: float) -> None:
    if ours is None:
        assert theirs is None
    elif isinstance(ours, Tensor):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    elif isinstance(ours, MambaHiddenState):
        torch.testing.assert_close(ours.conv, theirs.conv, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(ours.ssm, theirs.ssm, atol=tolerance, rtol=tolerance)
    else:
        for name, tensor in ours.hidden_tensors().items():
            torch.testing.assert_close(tensor, theirs.hidden_tensors()[name], atol=tolerance, rtol=tolerance)


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


@pytest.mark.parametrize("seed", range(24))
def test_a_transformer_acts_the_same(seed):
    assert_same_episodes(make_agent(transformer(seed), seed=seed))


def test_the_transformer_of_the_defaults_acts_the_same_with_a_long_window():
    encoder = partial(TformerTrajEncoder, d_model=128, d_ff=512)
    assert_same_episodes(make_agent(encoder, window=40), steps=90, rows=3)


@pytest.mark.parametrize("seed", range(6))
def test_a_gru_acts_the_same(seed):
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
def test_a_mamba_acts_the_same(sizes):
    assert_same_episodes(make_agent(partial(MambaTrajEncoder, **sizes)), steps=30)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", NORMS)
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
def test_timestep_encoders_of_other_settings_act_the_same(settings):
    assert_same_episodes(make_agent(IdentityTrajEncoder, tstep=settings), steps=3)


def test_a_timestep_encoder_that_hides_rewards_acts_the_same():
    agent = make_agent(IdentityTrajEncoder)
    agent.tstep_encoder.hide_rewards = True
    assert_same_episodes(agent, steps=3)


@pytest.mark.parametrize("rows", [1, 2, 11, 12, 13, 25, 64, 131])
def test_every_number_of_rows_acts_the_same(rows):
    encoder = partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40, n_layers=2)
    assert_same_episodes(make_agent(encoder), steps=4, rows=rows)


@pytest.mark.parametrize("rows", [12, 70])
def test_any_number_of_threads_gives_the_same_bits(rows):
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40), "box")
    inputs = make_inputs(agent, rows, torch.zeros(rows, dtype=torch.int64))
    before = torch.get_num_threads()
    actions: list[list[torch.Tensor]] = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            hidden = agent.init_hidden_state(rows, "cpu")
            actions.append([])
            for _ in range(80):  # by one thread and by all of them, in turn
                action, hidden = agent.get_actions(*inputs, hidden, sample=False)
                actions[-1].append(action)
    finally:
        torch.set_num_threads(before)
    assert agent._step_policy.steps == 240
    alone, by_two, by_three = (torch.stack(each) for each in actions)
    assert torch.equal(alone, by_two)
    assert torch.equal(alone, by_three)


def test_a_layer_that_is_added_acts():
    agent = make_agent(partial(FFTrajEncoder, d_model=32, n_layers=1), "box")
    inputs = make_inputs(agent, 3, torch.zeros(3, dtype=torch.int64))
    before, _ = agent.get_actions(*inputs, sample=False)
    blocks = agent.traj_encoder.traj_blocks
    blocks.append(blocks[0])
    got, _ = agent.get_actions(*inputs, sample=False)
    expected, _ = by_modules(agent, *inputs, sample=False)
    torch.testing.assert_close(got, expected)
    assert not torch.equal(got, before)


def test_a_ring_of_negative_length_is_refused():
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40))
    inputs = make_inputs(agent, 2, torch.zeros(2, dtype=torch.int64))
    _, hidden = agent.get_actions(*inputs, agent.init_hidden_state(2, "cpu"), sample=False)
    hidden.seq_lens[1] = -1
    before = hidden.key_cache.data.clone()
    with pytest.raises(ValueError, match="at least 0"):
        agent.get_actions(*inputs, hidden, sample=False)
    assert torch.equal(hidden.key_cache.data, before)


@pytest.mark.parametrize("actor", [Actor, ResidualActor])
@pytest.mark.parametrize("agent_type", [Agent, MultiTaskAgent])
@pytest.mark.parametrize("action", SPACES)
def test_the_likeliest_action_is_the_same(action, agent_type, actor):
    agent = make_agent(partial(GRUTrajEncoder, d_hidden=16), action, agent_type=agent_type, actor_type=actor)
    inputs = make_inputs(agent, 64, torch.zeros(64, dtype=torch.int64))
    got, _ = agent.get_actions(*inputs, sample=False)
    expected, _ = by_modules(agent, *inputs, sample=False)
    assert agent._step_policy.steps, agent._step_policy.reason
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dist", [GMM, Beta])
def test_distributions_that_the_program_does_not_know_draw_from_its_parameters(dist):
    agent = make_agent(IdentityTrajEncoder, "box", actor_type=partial(Actor, continuous_dist_type=dist))
    inputs = make_inputs(agent, 4000, torch.zeros(4000, dtype=torch.int64))
    inputs = (
        {key: x[:1].expand_as(x) for key, x in inputs[0].items()},
        inputs[1][:1].expand_as(inputs[1]),
        inputs[2],
    )
    got, expected = agent.get_actions(*inputs)[0], by_modules(agent, *inputs)[0]
    assert agent._step_policy.steps, agent._step_policy.reason
    torch.testing.assert_close(got.mean(0), expected.mean(0), atol=0.06, rtol=0.0)


@pytest.mark.parametrize("action", ["discrete", "multidiscrete"])
def test_sampled_choices_have_the_frequencies_of_the_policy(action):
    rows = 40_000
    agent = make_agent(IdentityTrajEncoder, action)
    with torch.no_grad():
        agent.actor.base.out_layer.weight.mul_(20.0)  # some probabilities fall below the floor
    obs, rl2s, time = make_inputs(agent, 1, torch.zeros(1, dtype=torch.int64))
    many = ({key: x.expand(rows, *x.shape[1:]) for key, x in obs.items()}, rl2s.expand(rows, -1, -1))
    actions, _ = agent.get_actions(*many, time.expand(rows, -1, -1))
    assert agent._step_policy.steps, agent._step_policy.reason
    with torch.no_grad():
        states, _ = agent.get_state_embedding(obs, rl2s, time)
        parts = agent.actor(states).probs[0, 0, -1].split(agent.action_spec.sizes)
    for component, probs in enumerate(parts):
        counts = torch.bincount(actions[:, 0, component], minlength=len(probs))
        spread = (rows * probs * (1 - probs)).sqrt()
        assert ((counts - rows * probs).abs() < 5 * spread + 1).all()


def test_sampled_numbers_have_the_moments_of_the_policy():
    rows = 40_000
    agent = make_agent(IdentityTrajEncoder, "box")
    obs, rl2s, time = make_inputs(agent, 1, torch.zeros(1, dtype=torch.int64))
    many = ({key: x.expand(rows, *x.shape[1:]) for key, x in obs.items()}, rl2s.expand(rows, -1, -1))
    actions, _ = agent.get_actions(*many, time.expand(rows, -1, -1))
    with torch.no_grad():
        states, _ = agent.get_state_embedding(obs, rl2s, time)
        dist = agent.actor(states).base
    u = torch.atanh(actions[:, 0].double().clamp(-1 + 1e-7, 1 - 1e-7))
    torch.testing.assert_close(u.mean(0).float(), dist.loc[0, 0, -1], atol=0.02, rtol=0.0)
    torch.testing.assert_close(u.std(0).float(), dist.scale[0, 0, -1], atol=0.02, rtol=0.02)


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "box"])
def test_torchs_seed_decides_what_is_drawn(action):
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40), action)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        hidden, drawn = agent.init_hidden_state(ROWS, "cpu"), []
        for step in range(9):
            inputs = make_inputs(agent, ROWS, torch.full((ROWS,), step))
            actions, hidden = agent.get_actions(*inputs, hidden)
            drawn.append(actions)
        runs.append(torch.stack(drawn))
    assert torch.equal(*runs)
    assert runs[0].unique().numel() > 1


def changes(agent: Agent) -> dict[str, Any]:
    """Ways in which an agent's weights change between steps, by name."""

    def optimize(**settings: Any) -> None:
        optimizer = torch.optim.AdamW(agent.parameters(), lr=0.05, **settings)
        for parameter in agent.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()

    def load(assign: bool) -> None:
        state = {key: value + 0.1 * torch.randn_like(value) for key, value in agent.state_dict().items()}
        agent.load_state_dict(state, assign=assign)

    def write() -> None:
        with torch.inference_mode():
            agent.actor.base.out_layer.bias.add_(1.0 + torch.rand(agent.actor.base.out_layer.bias.shape))

    def point_elsewhere() -> None:
        bias = agent.actor.base.out_layer.bias
        bias.data = bias.data + 1.0 + torch.rand_like(bias)

    def replace() -> None:
        agent.actor.base.out_layer = copy.deepcopy(agent.actor.base.out_layer)
        with torch.no_grad():
            agent.actor.base.out_layer.bias.add_(1.0)

    return {
        "optimizer": optimize,
        "foreach": partial(optimize, foreach=True),
        "fused": partial(optimize, fused=True),
        "load": partial(load, assign=False),
        "assign": partial(load, assign=True),
        "inference mode": write,
        "data": point_elsewhere,
        "layer": replace,
    }


@pytest.mark.parametrize("sigma_reparam", [True, False])
@pytest.mark.parametrize("change", changes(Agent.__new__(Agent)))
def test_changed_weights_act_at_once(change, sigma_reparam):
    encoder = partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40, sigma_reparam=sigma_reparam)
    agent = make_agent(encoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))

    def both() -> list[Tensor]:
        return [
            act(*inputs, agent.init_hidden_state(ROWS, "cpu"), sample=False)[0]
            for act in (agent.get_actions, partial(by_modules, agent))
        ]

    before, _ = both()
    changes(agent)[change]()
    got, _ = both()
    if sigma_reparam:  # its layers keep what they divided, by torch's count, which misses fused optimizers
        for module in agent.modules():
            if hasattr(module, "_divided"):
                module._divided = None
    _, expected = both()
    assert agent._step_policy.steps, agent._step_policy.reason
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(got, before, atol=1e-3)


def test_a_changed_setting_acts_at_once():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    agent.get_actions(*inputs, sample=False)
    agent.tstep_encoder.hide_rl2s = True
    got, expected = agent.get_actions(*inputs, sample=False)[0], by_modules(agent, *inputs, sample=False)[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


class OwnEncoder(FFTstepEncoder):
    """Computes something else than its parent."""

    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        return 2.0 * super().inner_forward(obs, rl2s, log_dict=log_dict)


class OwnAgent(Agent):
    """Computes states in a way of its own."""

    def get_state_embedding(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        states, hidden_state = super().get_state_embedding(*args, **kwargs)
        return -states, hidden_state


class OwnChoice(Discrete):
    """A distribution of the user's, over the reversed logits."""

    def forward(self, vec: Tensor, log_dict: Any = None) -> Any:
        return super().forward(-vec, log_dict)


def replaced(agent: Agent) -> Agent:
    agent.tstep_encoder = OwnEncoder(agent.obs_space, agent.rl2_space, d_hidden=24, d_output=16).eval()
    return agent


def hooked(agent: Agent) -> Agent:
    agent.actor.base.in_layer.register_forward_hook(lambda module, inputs, output: -output)
    return agent


def parametrized(agent: Agent) -> Agent:
    nn.utils.parametrizations.weight_norm(agent.actor.base.in_layer)
    return agent


def patched(agent: Agent) -> Agent:
    agent.actor.base.forward = lambda state: torch.ones(
        *state.shape[:-1], agent.actor.base.out_layer.out_features
    )
    return agent


def other_activation(agent: Agent) -> Agent:
    agent.actor.base.activation = nn.Tanh()
    return agent


@pytest.mark.parametrize(
    "change",
    [replaced, hooked, parametrized, patched, other_activation, Agent.train, Agent.double],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("acted_before", [True, False])
def test_what_no_program_stands_for_runs_through_the_modules(change, acted_before):
    agent = make_agent(IdentityTrajEncoder, "box", tstep={"normalize_inputs": False})
    obs, rl2s, time = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    if acted_before:
        agent.get_actions(obs, rl2s, time)
    change(agent)
    if change is Agent.double:
        rl2s = rl2s.double()
    got = agent.get_actions(obs, rl2s, time, sample=False)[0]
    torch.testing.assert_close(got, by_modules(agent, obs, rl2s, time, sample=False)[0])


@pytest.mark.parametrize("encoder", [partial(MambaTrajEncoder, backend="torch"), IdentityTrajEncoder])
@pytest.mark.parametrize("agent_type", [OwnAgent, Agent])
def test_users_agents_and_other_encoders_run_through_the_modules(agent_type, encoder):
    agent = make_agent(encoder, "box", agent_type=agent_type)
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    got = agent.get_actions(*inputs, agent.init_hidden_state(ROWS, "cpu"), sample=False)[0]
    expected = by_modules(agent, *inputs, agent.init_hidden_state(ROWS, "cpu"), sample=False)[0]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_behind_a_timestep_encoder_without_a_translation_a_program_goes_on():
    agent = replaced(make_agent(partial(GRUTrajEncoder, d_hidden=16)))
    assert_same_episodes(agent, steps=5)


def test_images_are_encoded_by_the_module():
    torch.manual_seed(0)
    agent = Agent(
        obs_space=gym.spaces.Dict({"observation": gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)}),
        rl2_space=gym.spaces.Box(-np.inf, np.inf, (4,)),
        action_space=SPACES["box"],
        max_seq_len=8,
        tstep_encoder_type=CNNTstepEncoder,
        traj_encoder_type=partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40),
    ).eval()
    ours, theirs = (agent.init_hidden_state(ROWS, "cpu") for _ in range(2))
    for step in range(12):
        obs = {"observation": torch.randint(0, 256, (ROWS, 1, 36, 36, 3), dtype=torch.uint8)}
        inputs = obs, torch.randn(ROWS, 1, 4), torch.full((ROWS, 1, 1), step)
        got, ours = agent.get_actions(*inputs, ours, sample=False)
        expected, theirs = by_modules(agent, *inputs, theirs, sample=False)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert agent._step_policy.steps == 12


def test_hooks_on_all_modules_are_called():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    before, _ = agent.get_actions(*inputs, sample=False)
    called: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(module))
    try:
        with_hook, _ = agent.get_actions(*inputs, sample=False)
    finally:
        hook.remove()
    assert agent.actor in called
    after, _ = agent.get_actions(*inputs, sample=False)
    torch.testing.assert_close(with_hook, before, atol=1e-5, rtol=1e-5)
    assert torch.equal(after, before)
    assert agent._step_policy.steps == 2


def test_tensors_that_are_given_again_are_read_again():
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40), "box")
    obs, rl2s, time = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    ours, theirs = (agent.init_hidden_state(ROWS, "cpu") for _ in range(2))
    obs["a"] = obs["a"].float()  # numbers that need no conversion are read where they lie
    for step in range(4):
        rl2s.normal_()
        obs["b"].normal_()
        if step == 2:  # elsewhere in memory
            rl2s.data = rl2s.data.clone()
            for state in (ours, theirs):
                state.key_cache.data = state.key_cache.data.clone()
        got, ours = agent.get_actions(obs, rl2s, time, ours, sample=False)
        expected, theirs = by_modules(agent, obs, rl2s, time, theirs, sample=False)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
        assert_same_memory(ours, theirs, 1e-5)
    assert agent._step_policy.steps == 4


def test_other_numbers_of_rows_take_turns():
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, d_ff=40), "box")
    states = {rows: agent.init_hidden_state(rows, "cpu") for rows in (3, 8)}
    expected = {rows: agent.init_hidden_state(rows, "cpu") for rows in states}
    for step in range(6):
        rows = (3, 8)[step % 2]
        inputs = make_inputs(agent, rows, torch.full((rows,), step // 2))
        got, states[rows] = agent.get_actions(*inputs, states[rows], sample=False)
        want, expected[rows] = by_modules(agent, *inputs, expected[rows], sample=False)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="3"):
        agent.get_actions(*make_inputs(agent, 8, torch.zeros(8, dtype=torch.int64)), states[3])
    assert agent._step_policy.steps == 6


def test_a_users_distribution_is_asked_for_its_choice():
    agent = make_agent(IdentityTrajEncoder, actor_type=partial(Actor, discrete_dist_type=OwnChoice))
    inputs = make_inputs(agent, 64, torch.zeros(64, dtype=torch.int64))
    assert torch.equal(
        agent.get_actions(*inputs, sample=False)[0], by_modules(agent, *inputs, sample=False)[0]
    )


def test_bf16_runs_through_the_modules():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = (
            agent.get_actions(*inputs, sample=False)[0],
            by_modules(agent, *inputs, sample=False)[0],
        )
    assert torch.equal(got, expected)


def test_another_backend_that_is_asked_for_runs():
    agent = make_agent(IdentityTrajEncoder, "box")
    inputs = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    with kernels.use_backend("eager"):
        agent.get_actions(*inputs)
    assert agent._step_policy.steps == 0


def test_probabilities_that_are_no_numbers_cannot_be_drawn_from():
    agent = make_agent(IdentityTrajEncoder)
    obs, rl2s, time = make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64))
    obs["b"][2] = torch.nan
    with pytest.raises(RuntimeError, match="not finite"):
        agent.get_actions(obs, rl2s, time)


def test_a_step_without_a_learned_position_says_so():
    encoder = partial(TformerTrajEncoder, d_model=32, n_heads=2, pos_emb="learned")
    gin.bind_parameter("LearnablePosEmb.max_time_idx", 4)
    agent = make_agent(encoder)
    assert_same_episodes(agent, steps=3)
    hidden = agent.init_hidden_state(ROWS, "cpu")
    with pytest.raises(ValueError, match="max_time_idx"):
        agent.get_actions(*make_inputs(agent, ROWS, torch.full((ROWS,), 4)), hidden)


@pytest.mark.parametrize("pos_emb", ["fixed", "rope"])
def test_positions_go_on_as_long_as_episodes_do(pos_emb):
    agent = make_agent(partial(TformerTrajEncoder, d_model=32, n_heads=2, pos_emb=pos_emb), "box")
    for step in (1023, 1024, 5000, 1_000_000):
        inputs = make_inputs(agent, ROWS, torch.full((ROWS,), step))
        ours, theirs = (agent.init_hidden_state(ROWS, "cpu") for _ in range(2))
        got = agent.get_actions(*inputs, ours, sample=False)[0]
        expected = by_modules(agent, *inputs, theirs, sample=False)[0]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_sequence_of_several_timesteps_runs_through_the_modules():
    agent = make_agent(IdentityTrajEncoder, "box")
    parts = [make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64)) for _ in range(2)]
    obs = {key: torch.cat([part[0][key] for part in parts], dim=1) for key in parts[0][0]}
    rl2s, time = (torch.cat([part[i] for part in parts], dim=1) for i in (1, 2))
    assert agent.get_actions(obs, rl2s, time, sample=False)[0].shape == (ROWS, 2, 3)


def test_threads_of_python_may_act_with_one_agent():
    agent = make_agent(partial(GRUTrajEncoder, d_hidden=64, n_layers=3), "box", tstep={"d_hidden": 256})
    given = [make_inputs(agent, rows, torch.zeros(rows, dtype=torch.int64)) for rows in (40, 60)]
    expected = [agent.get_actions(*inputs, sample=False)[0] for inputs in given]

    def act(which: int) -> bool:
        return all(
            torch.equal(agent.get_actions(*given[which], sample=False)[0], expected[which])
            for _ in range(300)
        )

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(act, range(2)))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent._step_policy))]
)
def test_copies_begin_blank(copied):
    agent = make_agent(IdentityTrajEncoder)
    agent.get_actions(*make_inputs(agent, ROWS, torch.zeros(ROWS, dtype=torch.int64)))
    copy_of = copied(agent)
    assert getattr(copy_of, "_step_policy", copy_of).steps == 0


def test_rows_that_lie_apart_are_read_where_they_lie():
    agent = make_agent(IdentityTrajEncoder, "box")
    obs, rl2s, time = make_inputs(agent, 2 * ROWS, torch.zeros(2 * ROWS, dtype=torch.int64))
    every_second = ({key: x[::2] for key, x in obs.items()}, rl2s[::2], time[::2])
    got = agent.get_actions(*every_second, sample=False)[0]
    torch.testing.assert_close(got, agent.get_actions(obs, rl2s, time, sample=False)[0][::2])


class Counted(Builder):
    """Counts how often a translation begins."""

    begun = 0

    def __init__(self) -> None:
        super().__init__()
        Counted.begun += 1


def test_what_cannot_be_translated_is_tried_again_only_after_it_has_changed(monkeypatch) -> None:
    monkeypatch.setattr("amago.nets.stepping.policy.Builder", Counted)
    monkeypatch.setattr(Counted, "begun", 0)
    agent = make_agent(partial(FFTrajEncoder, d_model=16))
    hook = agent.actor.register_forward_hook(lambda *_: None)

    def steps(count: int) -> int:
        """Takes steps; how many translations they began."""
        before, hidden = Counted.begun, agent.init_hidden_state(ROWS, torch.device("cpu"))
        for time in range(count):
            inputs = make_inputs(agent, ROWS, torch.full((ROWS,), time))
            _, hidden = agent.get_actions(*inputs, hidden_state=hidden)
        return Counted.begun - before

    assert steps(1) == 1
    assert steps(5) == 0
    assert agent._step_policy.reason is not None
    assert "hooks" in agent._step_policy.reason
    with torch.no_grad():
        next(agent.actor.parameters()).mul_(1.5)
    assert steps(5) <= 1  # a hook cannot go away with a weight, but other reasons may
    hook.remove()
    assert steps(5) == 1
    assert agent._step_policy.steps == 5
    assert agent._step_policy.reason is None
