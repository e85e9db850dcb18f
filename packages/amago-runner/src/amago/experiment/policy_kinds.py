"""The kinds of parts that an agent can have, and where their sizes show in its weights.

A kind is told by how names begin; a size by the length of an axis, by how many modules there are, or by whether
there is a tensor at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from amago.nets.actor_critic import Actor, ResidualActor

Weights = Mapping[str, Tensor]
Reader = Callable[[Weights], int | bool]


def axis_length(tensor: str, axis: int) -> Reader:
    """Reads the length of an axis; 0 if there is no such tensor or axis."""

    def read(weights: Weights) -> int:
        found = weights.get(tensor)
        return 0 if found is None or found.ndim <= axis else found.shape[axis]

    return read


def num_modules(prefix: str, more: int = 0) -> Reader:
    """Reads how many numbered modules follow a prefix; `more` are not numbered."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)")
    return lambda weights: len({found[1] for name in weights if (found := pattern.match(name))}) + more


def ratio(number: Reader, unit: Reader) -> Reader:
    """Reads how many times a size is another one."""
    return lambda weights: number(weights) // max(1, unit(weights))


def has(tensor: str) -> Reader:
    """Reads whether there is such a tensor."""
    return lambda weights: tensor in weights


@dataclass(frozen=True)
class Kind:
    """One kind of a part: the beginning of names that tells it, and its sizes, gin parameter and reader."""

    name: str
    marker: str
    sizes: Mapping[str, Reader]
    bound: Any = None


_ATTENTION = "traj_encoder.tformer.layers.0."
_MAMBA = "traj_encoder.mambas.0.mamba."
TSTEP_ENCODERS = (
    Kind(
        "ff",
        "tstep_encoder.base.",
        {
            "FFTstepEncoder.n_layers": num_modules("tstep_encoder.base.layers.", more=1),
            "FFTstepEncoder.d_hidden": axis_length("tstep_encoder.base.in_layer.weight", 0),
            "FFTstepEncoder.d_output": axis_length("tstep_encoder.base.out_layer.weight", 0),
        },
    ),
    Kind(
        "cnn",
        "tstep_encoder.cnn.",
        {
            "CNNTstepEncoder.img_features": axis_length("tstep_encoder.img_features.weight", 0),
            "CNNTstepEncoder.rl2_features": axis_length("tstep_encoder.rl2_features.weight", 0),
            "CNNTstepEncoder.d_output": axis_length("tstep_encoder.merge.weight", 0),
        },
    ),
    Kind(
        "multimodal",
        "tstep_encoder.obs_encoders.",
        {
            "MultiModalTstepEncoder.rl2_features": axis_length("tstep_encoder.rl2_features.weight", 0),
            "MultiModalTstepEncoder.n_layers": num_modules("tstep_encoder.merge.layers.", more=1),
            "MultiModalTstepEncoder.d_hidden": axis_length("tstep_encoder.merge.in_layer.weight", 0),
            "MultiModalTstepEncoder.d_output": axis_length("tstep_encoder.merge.out_layer.weight", 0),
        },
    ),
)
TRAJ_ENCODERS = (
    Kind(
        "ff",
        "traj_encoder.traj_blocks.",
        {
            "FFTrajEncoder.n_layers": num_modules("traj_encoder.traj_blocks."),
            "FFTrajEncoder.d_model": axis_length("traj_encoder.traj_emb.weight", 0),
            "FFTrajEncoder.d_ff": axis_length("traj_encoder.traj_blocks.0.ff1.weight", 0),
        },
    ),
    Kind(
        "rnn",
        "traj_encoder.rnn.",
        {
            "GRUTrajEncoder.n_layers": num_modules("traj_encoder.rnn.weight_hh_l"),
            "GRUTrajEncoder.d_hidden": axis_length("traj_encoder.rnn.weight_hh_l0", 1),
            "GRUTrajEncoder.d_output": axis_length("traj_encoder.out.weight", 0),
        },
    ),
    Kind(
        "transformer",
        "traj_encoder.tformer.",
        {
            "TformerTrajEncoder.n_layers": num_modules("traj_encoder.tformer.layers."),
            "TformerTrajEncoder.d_model": axis_length("traj_encoder.tformer.inp.weight", 0),
            "TformerTrajEncoder.d_ff": axis_length(f"{_ATTENTION}ff1.weight", 0),
            "TformerTrajEncoder.n_heads": axis_length(f"{_ATTENTION}attention_layer.head_scaler", 2),
            "TformerTrajEncoder.head_scaling": has(f"{_ATTENTION}attention_layer.head_scaler"),
            "TformerTrajEncoder.sigma_reparam": has(f"{_ATTENTION}ff1.gamma"),
            "TformerTrajEncoder.normformer_norms": has(f"{_ATTENTION}norm2.norm.weight"),
            "LearnablePosEmb.max_time_idx": axis_length(
                "traj_encoder.tformer.position_embedding.embeddings.weight", 0
            ),
        },
    ),
    Kind(
        "mamba",
        "traj_encoder.mambas.",
        {
            "MambaTrajEncoder.n_layers": num_modules("traj_encoder.mambas."),
            "MambaTrajEncoder.d_model": axis_length("traj_encoder.inp.weight", 0),
            "MambaTrajEncoder.d_state": axis_length(f"{_MAMBA}A_log", 1),
            "MambaTrajEncoder.expand": ratio(
                axis_length(f"{_MAMBA}A_log", 0), axis_length("traj_encoder.inp.weight", 0)
            ),
            "MambaTrajEncoder.d_conv": axis_length(f"{_MAMBA}conv1d.weight", 2),
        },
    ),
)
ACTORS = (
    Kind(
        "Actor",
        "actor.base.",
        {
            "Actor.n_layers": num_modules("actor.base.layers.", more=1),
            "Actor.d_hidden": axis_length("actor.base.in_layer.weight", 0),
        },
        Actor,
    ),
    Kind(
        "ResidualActor",
        "actor.residual_blocks.",
        {
            "ResidualActor.residual_blocks": num_modules("actor.residual_blocks."),
            "ResidualActor.feature_dim": axis_length("actor.inp.in_layer.weight", 0),
            "ResidualActor.residual_ff_dim": axis_length("actor.residual_blocks.0.0.weight", 0),
        },
        ResidualActor,
    ),
)
