"""The benchmark's plain agents do the same work: golden numbers, and the losses and gradients of our agents."""

import json
from pathlib import Path

import gin
import pytest
import torch
import torch.nn.functional as F
from benchmarks.plain.agents import PlainAgent, PlainMultiTaskAgent
from benchmarks.plain.policies import DiscretePolicy, TanhGaussianPolicy
from benchmarks.plain.sizes import Sizes
from benchmarks.plain.update import make_optimizer, update

from amago import agent as agents
from amago.agent import Batch
from amago.nets import policy_dists, traj_encoders, tstep_encoders
from amago.nets.specs import ActionSpec

INDEX = json.loads((Path(__file__).parents[1] / "golden" / "index.json").read_text())
GOLDEN = [name for name in INDEX if name.startswith("agent_")]
PLAIN = {"Agent": PlainAgent, "MultiTaskAgent": PlainMultiTaskAgent}
GAMMAS = [0.3, 0.9, 0.999]
BOX, DISCRETE = ActionSpec("box", (3,)), ActionSpec("discrete", (4,))
ENCODERS = {
    "ff": traj_encoders.FFTrajEncoder,
    "gru": traj_encoders.GRUTrajEncoder,
    "transformer": traj_encoders.TformerTrajEncoder,
}


def with_prefix(tensors, prefix):
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def policy_of(case):
    """The distribution that a golden case asks for."""
    settings, width = case["gin"], case["action_dim"]
    if name := settings.get("Actor.continuous_dist_type"):
        return getattr(policy_dists, name)(d_action=width)
    if case["discrete"]:
        low, high = (settings.get(f"Discrete.clip_prob_{end}") for end in ("low", "high"))
        return DiscretePolicy(width) if low is None else DiscretePolicy(width, low, high)
    return TanhGaussianPolicy(width, settings["TanhGaussian.std_low"], settings["TanhGaussian.std_high"])


def plain_of_case(case, state):
    kwargs = dict(case["kwargs"])
    auxiliary = case["gin"]["Multigammas.discrete" if case["discrete"] else "Multigammas.continuous"]
    kwargs["gammas"] = [*auxiliary, 0.999] if kwargs.pop("use_multigamma", True) else [0.999]
    if "fbc_filter_func" in kwargs:
        kwargs["fbc_filter_func"] = getattr(agents, kwargs["fbc_filter_func"])
    for theirs, ours in (
        ("label_type", "labels"),
        ("min_return", "min_return"),
        ("max_return", "max_return"),
    ):
        if f"NCriticsTwoHot.{theirs}" in case["gin"]:
            kwargs[ours] = case["gin"][f"NCriticsTwoHot.{theirs}"]
    kind = "discrete" if case["discrete"] else "multibinary" if case["multibinary"] else "box"
    return PLAIN[case["cls"]](
        Sizes.of(state),
        ActionSpec(kind, (case["action_dim"],)),
        policy=policy_of(case),
        dropout_emb=0.0,
        dropout_ff=0.0,
        **kwargs,
    )


@pytest.mark.parametrize("name", GOLDEN)
def test_the_plain_agents_equal_the_golden_numbers(golden, name):
    loaded = golden(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in loaded.arrays.items()}
    state = with_prefix(t, "state.")
    agent = plain_of_case(loaded.case, state)
    agent.load_state_dict(state, strict=True)
    agent.train()
    torch.manual_seed(0)
    loss = agent(
        Batch(
            obs={"observation": t["obs"]},
            **{key: t[key] for key in ("rl2s", "rews", "dones", "actions", "time_idxs")},
            lengths=torch.tensor(loaded.case["lengths"]),
        )
    )
    loss.backward()

    close = {"atol": 1e-3, "rtol": 1e-3}  # continuous policies are nearly, not wholly, deterministic
    torch.testing.assert_close(loss, t["loss"], **close)
    for key in ("Actor Loss", "Critic Loss"):
        torch.testing.assert_close(agent.info[key], torch.tensor(loaded.case["info"][key]), **close)
    parameters = dict(agent.named_parameters())
    for key, gradient in with_prefix(t, "grad.").items():
        ours = parameters[key].grad
        ours = torch.zeros_like(gradient) if ours is None else ours
        torch.testing.assert_close(ours, gradient, **close, msg=lambda m, key=key: f"gradient of {key}: {m}")
    for key, value in with_prefix(t, "after.").items():
        torch.testing.assert_close(
            agent.state_dict()[key], value, atol=1e-4, rtol=1e-3, msg=lambda m, key=key: f"{key}: {m}"
        )


def test_all_golden_agents_are_covered():
    assert len(GOLDEN) == 13


def random_batch(spec, rows, timesteps, generator):
    def noise(*shape):
        return torch.randn(*shape, generator=generator)

    if spec.kind == "discrete":
        chosen = torch.randint(spec.dim, (rows, timesteps - 1), generator=generator)
        actions = F.one_hot(chosen, spec.dim).float()
    else:
        actions = torch.rand(rows, timesteps - 1, spec.dim, generator=generator) * 2 - 1
    lengths = torch.randint(2, timesteps + 1, (rows,), generator=generator)
    lengths[0] = timesteps
    return Batch(
        obs={"a": noise(rows, timesteps, 3), "b": noise(rows, timesteps, 2, 2)},
        rl2s=noise(rows, timesteps, 1 + spec.dim),
        rews=noise(rows, timesteps - 1, 1),
        dones=torch.rand(rows, timesteps - 1, 1, generator=generator) < 0.2,
        actions=actions,
        time_idxs=torch.arange(timesteps).view(1, -1, 1).repeat(rows, 1, 1),
        lengths=lengths,
    )


def pair(cls_name, spec, encoder, num_critics, **kwargs):
    """One of our agents and its plain twin with the same weights; policies that hardly leave a choice."""
    for key, value in {
        "FFTstepEncoder.d_hidden": 10,
        "FFTstepEncoder.d_output": 9,
        "FFTrajEncoder.d_model": 8,
        "GRUTrajEncoder.d_hidden": 7,
        "GRUTrajEncoder.d_output": 6,
        "TformerTrajEncoder.d_model": 12,
        "TformerTrajEncoder.d_ff": 20,
        "TformerTrajEncoder.n_heads": 2,
        "TformerTrajEncoder.n_layers": 2,
        "TformerTrajEncoder.dropout_emb": 0.0,
        "TformerTrajEncoder.dropout_ff": 0.0,
        "Actor.d_hidden": 11,
        "NCritics.d_hidden": 12,
        "Multigammas.discrete": GAMMAS[:-1],
        "Multigammas.continuous": GAMMAS[:-1],
        "TanhGaussian.std_low": 1e-6,
        "TanhGaussian.std_high": 1.1e-6,
        "Discrete.clip_prob_low": 0.0,
        "Discrete.clip_prob_high": 1.0,
    }.items():
        gin.bind_parameter(key, value)
    if cls_name == "MultiTaskAgent":
        gin.bind_parameter("NCriticsTwoHot.d_hidden", 12)
        gin.bind_parameter("NCriticsTwoHot.output_bins", 16)
    ours = getattr(agents, cls_name)(
        obs_space={"a": (3,), "b": (2, 2)},
        rl2_space=(1 + spec.dim,),
        action_space=spec,
        max_seq_len=16,
        tstep_encoder_type=tstep_encoders.FFTstepEncoder,
        traj_encoder_type=ENCODERS[encoder],
        num_critics=num_critics,
        num_critics_td=num_critics,
        **kwargs,
    )
    for actor in (ours.actor, ours.target_actor):
        peaks = torch.randint(spec.dim, (len(GAMMAS),))
        if spec.kind == "discrete" and cls_name == "MultiTaskAgent":
            actor.base.out_layer.bias.data += 14 * F.one_hot(peaks, spec.dim).flatten()
    for target in ours.target_critics.parameters():
        target.data += 0.1 * torch.randn_like(target)
    state = ours.state_dict()
    policy = (
        DiscretePolicy(spec.dim, 0.0, 1.0)
        if spec.kind == "discrete"
        else TanhGaussianPolicy(spec.dim, 1e-6, 1.1e-6)
    )
    plain = PLAIN[cls_name](
        Sizes.of(state),
        spec,
        gammas=GAMMAS,
        num_critics=num_critics,
        num_critics_td=num_critics,
        policy=policy,
        dropout_emb=0.0,
        dropout_ff=0.0,
        **kwargs,
    )
    plain.load_state_dict(state, strict=True)
    return ours, plain


COEFFICIENTS = {
    "both": {"online_coeff": 0.7, "offline_coeff": 0.4},
    "offline": {"online_coeff": 0.0, "offline_coeff": 1.0},
    "online": {"online_coeff": 1.0, "offline_coeff": 0.0},
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("coefficients", COEFFICIENTS.values(), ids=COEFFICIENTS)
@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("cls_name", [name for name in PLAIN if hasattr(agents, name)])
def test_our_agents_do_the_same_as_the_plain_ones(cls_name, spec, coefficients, seed):
    torch.manual_seed(seed)
    encoder = ["transformer", "gru", "ff"][seed]
    ours, plain = pair(
        cls_name, spec, encoder, num_critics=2 + seed, n_step=1 + 2 * (seed % 2), **coefficients
    )
    batch = random_batch(spec, 2 + seed, 7 + 3 * seed, torch.Generator().manual_seed(seed))
    losses = []
    for agent, arguments in ((ours, {"log_step": False}), (plain, {})):
        agent.train()
        torch.manual_seed(seed)
        losses.append(agent(batch, **arguments))
        losses[-1].backward()
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)
    theirs = dict(plain.named_parameters())
    for name, p in ours.named_parameters():
        if p.requires_grad:
            a, b = (torch.zeros_like(x) if x.grad is None else x.grad for x in (p, theirs[name]))
            torch.testing.assert_close(a, b, atol=1e-3, rtol=2e-3, msg=lambda m, n=name: f"{n}: {m}")
    buffers = dict(plain.named_buffers())
    for name, value in ours.named_buffers():
        if name in buffers:
            torch.testing.assert_close(value, buffers[name], msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("spec", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("cls", PLAIN.values(), ids=PLAIN)
def test_a_plain_update_moves_weights_and_targets(cls, spec, dtype):
    torch.manual_seed(0)
    sizes = Sizes(inputs=8 + spec.dim, tstep_hidden=16, tstep_output=12, traj_width=16, traj_hidden=32,
                  traj_layers=2, traj_heads=2, actor_hidden=16, critic_hidden=16, bins=16)  # fmt: skip
    agent = cls(sizes, spec, gammas=GAMMAS, tau=0.5)
    optimizer = make_optimizer(agent, lr=1e-2)
    before = {name: p.clone() for name, p in agent.named_parameters()}
    batch = random_batch(spec, 4, 9, torch.Generator().manual_seed(1))
    losses = [update(agent, optimizer, batch, dtype=dtype) for _ in range(30)]
    assert all(loss.isfinite() for loss in losses)
    assert losses[-1] < losses[0]
    still = [name for name, p in agent.named_parameters() if torch.equal(p, before[name])]
    assert still == []
    for p, copied in zip(agent.critics.parameters(), agent.maximized_critics.parameters(), strict=True):
        assert torch.equal(p, copied)
        assert copied.grad is None
