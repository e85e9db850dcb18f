"""`Sizes`: the widths and depths of all networks of an agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of layers and widths; the defaults are those of the packages.

    Args:
        inputs: features of a timestep: observations, previous reward and previous action.
        tstep_layers, tstep_hidden, tstep_output: hidden layers of the timestep encoder, their width, its output.
        traj: kind of the trajectory encoder.
        traj_layers: its layers or blocks.
        traj_width: width of its output (and of the residual stream, where there is one).
        traj_hidden: width of its feed-forward or recurrent layers.
        traj_heads: attention heads, for a Transformer.
        actor_layers, actor_hidden: hidden layers of the actor and their width.
        critic_layers, critic_hidden: the same of each critic.
        bins: classes of a classifying critic.
    """

    inputs: int
    tstep_layers: int = 2
    tstep_hidden: int = 512
    tstep_output: int = 256
    traj: Literal["ff", "gru", "transformer"] = "transformer"
    traj_layers: int = 3
    traj_width: int = 256
    traj_hidden: int = 1024
    traj_heads: int = 8
    actor_layers: int = 2
    actor_hidden: int = 256
    critic_layers: int = 2
    critic_hidden: int = 256
    bins: int = 128

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> Sizes:
        """Read from an agent's state dict."""

        def shape(key: str, axis: int) -> int:
            return state[key].shape[axis]

        def count(prefix: str) -> int:
            return len({key[len(prefix) :].partition(".")[0] for key in state if key.startswith(prefix)})

        traj: Literal["ff", "gru", "transformer"]
        if "traj_encoder.tformer.inp.weight" in state:
            layers = "traj_encoder.tformer.layers."
            traj, n, heads = "transformer", count(layers), shape(f"{layers}0.attention_layer.head_scaler", 2)
            width, hidden = shape("traj_encoder.tformer.inp.weight", 0), shape(f"{layers}0.ff1.weight", 0)
        elif "traj_encoder.rnn.weight_hh_l0" in state:
            traj, n, heads = "gru", sum("rnn.weight_hh_l" in key for key in state), 1
            width, hidden = shape("traj_encoder.out.weight", 0), shape("traj_encoder.out.weight", 1)
        else:
            traj, n, heads = "ff", count("traj_encoder.traj_blocks."), 1
            width, hidden = (
                shape("traj_encoder.traj_blocks.0.ff1.weight", 1),
                shape("traj_encoder.traj_blocks.0.ff1.weight", 0),
            )
        return cls(
            inputs=shape("tstep_encoder.base.in_layer.weight", 1),
            tstep_layers=1 + count("tstep_encoder.base.layers."),
            tstep_hidden=shape("tstep_encoder.base.in_layer.weight", 0),
            tstep_output=shape("tstep_encoder.base.out_layer.weight", 0),
            traj=traj,
            traj_layers=n,
            traj_width=width,
            traj_hidden=hidden,
            traj_heads=heads,
            actor_layers=1 + count("actor.base.layers."),
            actor_hidden=shape("actor.base.in_layer.weight", 0),
            critic_layers=1 + count("critics.net.core_layers."),
            critic_hidden=shape("critics.net.inp_layer.weight", 2),
            bins=shape("critics.net.output_layer.weight", 2),
        )
