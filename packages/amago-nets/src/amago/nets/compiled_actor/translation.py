"""How modules become operations of a program: the registry, and layers, norms, activations and blocks.

Each translation appends operations and returns the value of the module's output. Weights and settings are read
once: a program is a snapshot of its modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from amago.kernels.acting import Program
from amago.nets import normalization
from amago.nets.dropout import Dropout
from amago.nets.ff import MLP, FFBlock
from amago.nets.input_norm import OUTPUT_LIMIT, InputNorm
from amago.nets.linear import Linear
from amago.nets.transformer.layers import SigmaReparam

Activation = tuple[str, float]
NO_ACTIVATION: Activation = ("none", 0.0)

Translation = Callable[..., Any]
_TRANSLATIONS: dict[type, Translation] = {}


class NotTranslatedError(Exception):
    """A module cannot be part of a program; the message says which one and why."""


def translates(*classes: type) -> Callable[[Translation], Translation]:
    """Decorator: registers a function as the translation of modules of exactly these classes.

    It is called with the builder, the module and the other arguments of `Builder.translate`.
    """

    def register(function: Translation) -> Translation:
        for cls in classes:
            _TRANSLATIONS[cls] = function
        return function

    return register


class Builder:
    """A program under construction."""

    def __init__(self) -> None:
        self.program = Program()

    def translate(self, module: Any, *arguments: Any, **options: Any) -> Any:
        """Returns what the module's translation returns.

        Raises:
            NotTranslatedError: if the module or one within it has no translation.
        """
        translation = _TRANSLATIONS.get(type(module))
        if translation is None:
            raise NotTranslatedError(f"{type(module).__name__} has no translation to C++")
        return translation(self, module, *arguments, **options)


def require_plain(root: nn.Module) -> None:
    """Checks what no translation sees: modes, hooks, replaced `forward` methods, dtypes and devices.

    Raises:
        NotTranslatedError: if calling the module would do more than its class says, or weights are not float32 on
            the CPU.
    """
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise NotTranslatedError("forward hooks are registered for all modules")
    for module in root.modules():
        name = type(module).__name__
        if module.training:
            raise NotTranslatedError(f"{name} is in training mode")
        if module._forward_hooks or module._forward_pre_hooks:
            raise NotTranslatedError(f"{name} has forward hooks")
        if "forward" in vars(module):
            raise NotTranslatedError(f"{name}.forward is replaced")
    for tensor in (*root.parameters(), *root.buffers()):
        if tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype != torch.float32):
            raise NotTranslatedError(f"a weight is {tensor.dtype} on {tensor.device}, not float32 on the CPU")


def activation_of(module: nn.Module) -> Activation:
    """The name and slope of an activation module, as programs take them.

    Raises:
        NotTranslatedError: for an unknown activation.
    """
    if type(module) is nn.LeakyReLU:
        return "leaky_relu", float(module.negative_slope)
    if type(module) is nn.GELU and module.approximate == "none":
        return "gelu", 0.0
    names: dict[type, str] = {nn.ReLU: "relu", nn.Mish: "mish", nn.Identity: "none"}
    if type(module) not in names:
        raise NotTranslatedError(f"the activation {type(module).__name__} has no translation to C++")
    return names[type(module)], 0.0


def skip_dropout(module: nn.Module) -> None:
    """Dropout does nothing in eval mode; raises NotTranslatedError for another class in its place."""
    if type(module) not in (Dropout, nn.Dropout, nn.Identity):
        raise NotTranslatedError(f"{type(module).__name__} has no translation to C++")


@translates(Linear, nn.Linear, SigmaReparam)
def linear(
    builder: Builder,
    module: nn.Linear,
    x: int,
    activation: Activation = NO_ACTIVATION,
    add: int | None = None,
    outputs: slice | Tensor | None = None,
    inputs_scale: Tensor | None = None,
) -> int:
    """activation(W x + b) + add.

    Args:
        outputs: which outputs to compute, in that order; all by default.
        inputs_scale: factors on equally large groups of inputs.
    """
    weight: Tensor = module.effective_weight() if isinstance(module, Linear) else module.weight
    bias: Tensor | None = module.bias
    if inputs_scale is not None:
        weight = weight * inputs_scale.flatten().repeat_interleave(module.in_features // inputs_scale.numel())
    if outputs is not None:
        weight, bias = weight[outputs], None if bias is None else bias[outputs]
    return builder.program.linear(x, weight, bias, activation, add)


def _norm_arguments(module: Any) -> tuple[str, float, Tensor | None, Tensor | None]:
    """Kind, number, scale and shift of a norm, as `Program.norm` takes them."""
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
    raise NotTranslatedError(f"the norm {kind.__name__} has no translation to C++")


@translates(normalization.Normalization, nn.Identity)
def norm(
    builder: Builder,
    module: nn.Module,
    x: int,
    activation: Activation = NO_ACTIVATION,
    add: int | None = None,
) -> int:
    """activation(norm(x)) + add."""
    inner = module.norm if isinstance(module, normalization.Normalization) else module
    kind, number, scale, shift = _norm_arguments(inner)
    if kind == "none" and activation == NO_ACTIVATION and add is None:
        return x
    return builder.program.norm(x, kind, number, scale, shift, activation, add)


def is_identity(module: nn.Module) -> bool:
    """Whether a norm is the identity."""
    inner = module.norm if type(module) is normalization.Normalization else module
    return type(inner) is nn.Identity


def layer_and_norm(
    builder: Builder,
    layer: nn.Module,
    normalisation: nn.Module,
    x: int,
    activation: Activation = NO_ACTIVATION,
    add: int | None = None,
) -> int:
    """activation(norm(layer(x))) + add, as one operation if the norm is the identity."""
    if is_identity(normalisation):
        return int(builder.translate(layer, x, activation=activation, add=add))
    return int(builder.translate(normalisation, builder.translate(layer, x), activation=activation, add=add))


@translates(MLP)
def mlp(builder: Builder, module: MLP, x: int, outputs: slice | None = None) -> int:
    """The multi-layer perceptron; `outputs` limits which of its outputs are computed."""
    skip_dropout(module.dropout)
    activation = activation_of(module.activation)
    x = layer_and_norm(builder, module.in_layer, module.in_norm, x, activation)
    for layer, normalisation in zip(module.layers, module.norms, strict=True):
        x = layer_and_norm(builder, layer, normalisation, x, activation)
    return int(builder.translate(module.out_layer, x, outputs=outputs))


@translates(FFBlock)
def ff_block(builder: Builder, module: FFBlock, x: int) -> int:
    """The residual feed-forward block."""
    skip_dropout(module.dropout)
    activation = activation_of(module.activation)
    hidden = layer_and_norm(builder, module.ff1, module.norm1, x, activation)
    return layer_and_norm(builder, module.ff2, module.norm2, hidden, activation, add=x)


@translates(InputNorm)
def input_norm(builder: Builder, module: InputNorm, x: int) -> int:
    """Standardised features."""
    return x if module.skip else builder.program.standardise(x, module.scale, module.mu, OUTPUT_LIMIT)
