"""How linear layers, norms, activations and the blocks made of them are translated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from amago.nets import normalization
from amago.nets.dropout import Dropout
from amago.nets.ff import MLP, FFBlock
from amago.nets.input_norm import OUTPUT_LIMIT, InputNorm
from amago.nets.linear import Linear
from amago.nets.stepping.builder import Builder, NotTranslatedError, translates
from amago.nets.transformer.layers import SigmaReparam

Activation = tuple[str, float]
NONE: Activation = ("none", 0.0)


def activation_of(builder: Builder, module: nn.Module) -> Activation:
    """The name and slope of an activation module.

    Raises:
        NotTranslatedError: if it is another one than the program has.
    """
    builder.visit(module)
    if type(module) is nn.LeakyReLU:
        return "leaky_relu", float(builder.setting(module, "negative_slope"))
    if type(module) is nn.GELU and builder.setting(module, "approximate") == "none":
        return "gelu", 0.0
    names: dict[type, str] = {nn.ReLU: "relu", nn.Mish: "mish", nn.Identity: "none"}
    if type(module) not in names:
        raise NotTranslatedError(f"the activation {type(module).__name__} has no translation")
    return names[type(module)], 0.0


def acting_dropout(builder: Builder, module: nn.Module) -> None:
    """Dropout passes everything on while acting; raises NotTranslatedError for a class that may not."""
    builder.visit(module)
    if type(module) not in (Dropout, nn.Dropout, nn.Identity):
        raise NotTranslatedError(f"{type(module).__name__} has no translation")


@translates(Linear, nn.Linear, SigmaReparam)
def linear(
    builder: Builder,
    module: nn.Linear,
    x: int,
    activation: Activation = NONE,
    add: int | None = None,
    outputs: slice | Tensor | None = None,
    inputs_scale: Tensor | None = None,
) -> int:
    """activation(W x + b) + add.

    Args:
        outputs: the ones to compute, in that order; all by default.
        inputs_scale: factors on equally large groups of inputs.
    """
    parts = [module.weight, module.bias, inputs_scale]
    if isinstance(module, SigmaReparam):
        parts += [module.gamma, module.u, module.v]
    present = builder.weights(*parts)

    def weights() -> tuple[Tensor | None, Tensor | None]:
        present()
        with torch.enable_grad():  # SigmaReparam then divides anew instead of going by what torch has counted
            weight = module.effective_weight() if isinstance(module, Linear) else module.weight
        with torch.no_grad():
            if inputs_scale is not None:
                weight = weight * inputs_scale.reshape(-1).repeat_interleave(
                    module.in_features // inputs_scale.numel()
                )
            if outputs is None:
                return weight, module.bias
            return weight[outputs], None if module.bias is None else module.bias[outputs]

    width = module.out_features
    if isinstance(outputs, slice):
        width = len(range(*outputs.indices(width)))
    return builder.program.linear(x, width, weights, activation, add)


def norm_of(module: Any) -> tuple[str, float, Tensor | None, Tensor | None]:
    """Kind, number, scale and shift of a norm as `StepProgram.norm` takes them.

    Raises:
        NotTranslatedError: if it is another one than the program has.
    """
    kind = type(module)
    if kind is nn.Identity:
        return "none", 0.0, None, None
    if kind is nn.LayerNorm and len(module.normalized_shape) == 1:
        return "layer", module.eps, module.weight, module.bias
    if kind is normalization.RMSNorm:
        return "rms", normalization.EPS, module.scale, None
    if kind is normalization.UnitBall:
        return "unit_ball", normalization.EPS, None, None
    if kind is normalization.Hypersphere:
        return "hypersphere", 1e-12, None, None  # the epsilon of torch.nn.functional.normalize
    if kind is normalization.SimNorm:
        return "simplex", float(module.dim), None, None
    raise NotTranslatedError(f"the norm {kind.__name__} has no translation")


@translates(normalization.Normalization, nn.Identity)
def norm(
    builder: Builder, module: nn.Module, x: int, activation: Activation = NONE, add: int | None = None
) -> int:
    """activation(norm(x)) + add."""
    if isinstance(module, normalization.Normalization):
        module = module.norm
        builder.visit(module)
    kind, number, scale, shift = norm_of(module)
    if kind == "none" and activation == NONE and add is None:
        return x
    present = None if scale is None and shift is None else builder.weights(scale, shift)

    def weights() -> tuple[Tensor | None, Tensor | None]:
        tensors = () if present is None else present()
        return (tensors[0], tensors[1]) if tensors else (None, None)

    return builder.program.norm(x, kind, number, None if present is None else weights, activation, add)


def is_nothing(builder: Builder, module: nn.Module) -> bool:
    """Whether a norm leaves its input as it is."""
    builder.visit(module)
    inner = module.norm if type(module) is normalization.Normalization else module
    builder.visit(inner)
    return type(inner) is nn.Identity


def layer_and_norm(
    builder: Builder,
    layer: nn.Module,
    normalisation: nn.Module,
    x: int,
    activation: Activation = NONE,
    add: int | None = None,
) -> int:
    """activation(norm(layer(x))) + add, in one operation where the norm is none."""
    if is_nothing(builder, normalisation):
        return int(builder.translate(layer, x, activation=activation, add=add))
    return int(builder.translate(normalisation, builder.translate(layer, x), activation=activation, add=add))


@translates(MLP)
def mlp(builder: Builder, module: MLP, x: int, outputs: slice | None = None) -> int:
    """The multi-layer perceptron, or only some of its outputs."""
    acting_dropout(builder, module.dropout)
    activation = activation_of(builder, module.activation)
    x = layer_and_norm(builder, module.in_layer, module.in_norm, x, activation)
    for parts in (module.layers, module.norms):
        builder.visit(parts)
    for layer, normalisation in zip(module.layers, module.norms, strict=True):
        x = layer_and_norm(builder, layer, normalisation, x, activation)
    return int(builder.translate(module.out_layer, x, outputs=outputs))


@translates(FFBlock)
def ff_block(builder: Builder, module: FFBlock, x: int) -> int:
    """The residual block."""
    acting_dropout(builder, module.dropout)
    activation = activation_of(builder, module.activation)
    hidden = layer_and_norm(builder, module.ff1, module.norm1, x, activation)
    return layer_and_norm(builder, module.ff2, module.norm2, hidden, activation, add=x)


@translates(InputNorm)
def input_norm(builder: Builder, module: InputNorm, x: int) -> int:
    """Standardised features."""
    if builder.setting(module, "skip"):
        return x
    present = builder.weights(module.mu, module.nu)

    def weights() -> tuple[Tensor, Tensor]:
        present()
        return module.scale, module.mu

    return builder.program.standardise(x, weights, OUTPUT_LIMIT)
