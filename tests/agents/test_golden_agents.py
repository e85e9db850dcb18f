"""Whole agents: loss, gradients and moved buffers of one training forward equal the golden numbers."""

import json
from pathlib import Path

import gin
import pytest
import torch

from amago import agent as agents
from amago.agent import Batch
from amago.nets import policy_dists, traj_encoders, transformer, tstep_encoders
from amago.nets.specs import ActionSpec

INDEX = json.loads((Path(__file__).parents[1] / "golden" / "index.json").read_text())
CASES = [name for name in INDEX if name.startswith("agent_")]
CLASSES = {"TformerTrajEncoder.attention_type": transformer, "Actor.continuous_dist_type": policy_dists}


def build(case):
    """The agent of a golden case."""
    for key, value in case["gin"].items():
        gin.bind_parameter(key, getattr(CLASSES[key], value) if key in CLASSES else value)
    kwargs = dict(case["kwargs"])
    if "fbc_filter_func" in kwargs:
        kwargs["fbc_filter_func"] = getattr(agents, kwargs["fbc_filter_func"])
    kind = "discrete" if case["discrete"] else "multibinary" if case["multibinary"] else "box"
    width = case["action_dim"]
    return getattr(agents, case["cls"])(
        obs_space={"observation": (case["obs_dim"],)},
        rl2_space=(1 + width,),
        action_space=ActionSpec(kind, (width,)),
        max_seq_len=case["max_seq_len"],
        tstep_encoder_type=getattr(tstep_encoders, case["tstep_encoder"]),
        traj_encoder_type=getattr(traj_encoders, case["traj_encoder"]),
        **kwargs,
    )


def with_prefix(tensors, prefix):
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


@pytest.mark.parametrize("lengths_known", [True, False], ids=["lengths", "filler"])
@pytest.mark.parametrize("name", CASES)
def test_one_training_forward_equals_the_golden_numbers(golden, name, lengths_known):
    loaded = golden(name)
    t = {key: torch.from_numpy(value.copy()) for key, value in loaded.arrays.items()}
    agent = build(loaded.case)
    agent.load_state_dict(with_prefix(t, "state."), strict=True)
    agent.train()
    torch.manual_seed(0)
    batch = Batch(
        obs={"observation": t["obs"]},
        **{key: t[key] for key in ("rl2s", "rews", "dones", "actions", "time_idxs")},
        lengths=torch.tensor(loaded.case["lengths"]) if lengths_known else None,
    )
    loss = agent(batch, log_step=True)
    loss.backward()

    close = {"atol": 1e-3, "rtol": 1e-3}  # continuous policies are nearly, not wholly, deterministic
    torch.testing.assert_close(loss, t["loss"], **close)
    for key, value in loaded.case["info"].items():
        torch.testing.assert_close(agent.update_info[key].double(), torch.tensor(value).double(), **close)
    parameters = dict(agent.named_parameters())
    for key, gradient in with_prefix(t, "grad.").items():
        ours = parameters[key].grad
        ours = torch.zeros_like(gradient) if ours is None else ours
        torch.testing.assert_close(ours, gradient, **close, msg=lambda m, key=key: f"gradient of {key}: {m}")
    state = agent.state_dict()
    for key, value in with_prefix(t, "after.").items():
        torch.testing.assert_close(
            state[key], value, atol=1e-4, rtol=1e-3, msg=lambda m, key=key: f"{key}: {m}"
        )
