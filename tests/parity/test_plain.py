"""The benchmark's plain agents do the same work: golden numbers, and the losses and gradients of our agents."""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.plain.agents import PlainAgent, PlainMultiTaskAgent
from benchmarks.plain.policies import DiscretePolicy, TanhGaussianPolicy
from benchmarks.plain.sizes import Sizes

from amago import agent as agents
from amago.agent import Batch
from amago.nets import policy_dists
from amago.nets.specs import ActionSpec

INDEX = json.loads((Path(__file__).parents[1] / "golden" / "index.json").read_text())
GOLDEN = [name for name in INDEX if name.startswith("agent_")]
PLAIN = {"Agent": PlainAgent, "MultiTaskAgent": PlainMultiTaskAgent}
BOX, DISCRETE = ActionSpec("box", (3,)), ActionSpec("discrete", (4,))


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
