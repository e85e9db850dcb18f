"""Utilities: warnings, AdamWRel, a learning-rate schedule, gradient norms, and gin settings for loggers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import math
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from amago.nets.masking import masked_avg

__all__ = [
    "AdamWRel",
    "AmagoWarning",
    "amago_warning",
    "as_readable_json",
    "call_async_env",
    "count_params",
    "get_constant_schedule_with_warmup",
    "get_grad_norm",
    "gin_as_wandb_config",
    "masked_avg",
    "stack_list_array_dicts",
]


class AmagoWarning(UserWarning):
    """Category of the warnings of an experiment."""


def amago_warning(message: str, stacklevel: int = 2) -> None:
    """Issues an `AmagoWarning`; `stacklevel` is that of `warnings.warn`, as seen by the caller."""
    warnings.warn(message, AmagoWarning, stacklevel=stacklevel)


@gin.configurable(module="amago.utils")
class AdamWRel(torch.optim.AdamW):
    """AdamW whose step count, which corrects the bias of the moments, is reset to 0 at intervals.

    When the objective changes, e.g. by a new target network, Adam's moments are outdated, and with a large step
    count its updates can grow far beyond the learning rate; a reset step count bounds them. The moments are kept.
    Ellis et al. 2024, "Adam on Local Time: Addressing Nonstationarity in RL with Relative Adam Timesteps".

    Args:
        params, lr, betas, eps, weight_decay: As in `torch.optim.AdamW`.
        reset_interval: Optimizer steps between resets, at least 1.

    Raises:
        ValueError: `reset_interval` is below 1.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        reset_interval: int = gin.REQUIRED,
    ) -> None:
        if reset_interval < 1:
            raise ValueError(f"reset_interval must be at least 1 step, not {reset_interval!r}")
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for group in self.param_groups:
            group["reset_interval"] = int(reset_interval)
            group["local_step"] = 0

    def step(self, closure: Any = None) -> Any:
        """Performs an optimizer step; resets the step counts if it is the last of an interval."""
        loss = super().step(closure)
        for group in self.param_groups:
            group["local_step"] += 1
            if group["local_step"] >= group["reset_interval"]:
                group["local_step"] = 0
                for param in group["params"]:
                    if "step" in self.state[param]:
                        self.state[param]["step"].zero_()
        return loss


def get_grad_norm(model: nn.Module) -> Tensor:
    """L2 norm of all gradients of `model` as one vector, a scalar tensor; 0 if there are none."""
    grads = [param.grad.detach() for param in model.parameters() if param.grad is not None]
    return nn.utils.get_total_norm(grads)


def count_params(model: nn.Module) -> int:
    """Number of trainable parameters of `model`."""
    return sum(param.numel() for param in model.parameters() if param.requires_grad)


def get_constant_schedule_with_warmup(
    optimizer: torch.optim.Optimizer, num_warmup_steps: int, last_epoch: int = -1
) -> torch.optim.lr_scheduler.LambdaLR:
    """Constant learning rate after a linear warm-up: the factor is min(1, step / N) with N = `num_warmup_steps`.

    The first update (step 0) has rate 0, unless N is 0.
    """
    if num_warmup_steps < 0:
        raise ValueError(f"num_warmup_steps must be at least 0, not {num_warmup_steps!r}")

    def factor(step: int) -> float:
        return 1.0 if step >= num_warmup_steps else step / num_warmup_steps

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=last_epoch)


def call_async_env(env: Any, method_name: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of every environment of a vector environment; returns the list of results.

    Args:
        env: `train_envs` or `val_envs` of an Experiment, or a vector environment of Gymnasium.
        method_name: Method of the environment or of one of its wrappers.
        args, kwargs: Arguments of the method, the same for every environment.

    Raises:
        ValueError: `env` is None, as `train_envs` of a run that never collects.
    """
    if env is None:
        raise ValueError(
            f"env is None, so {method_name!r} cannot be called: an Experiment that never collects has no "
            "train_envs. Use val_envs, or let it collect."
        )
    if hasattr(env, "call_async"):
        env.call_async(method_name, *args, **kwargs)
        return env.call_wait()
    return env.call(method_name, *args, **kwargs)


def stack_list_array_dicts(
    dicts: Sequence[Mapping[str, NDArray[Any]]], axis: int = 0, cat: bool = False
) -> dict[str, NDArray[Any]]:
    """Stacks or concatenates dictionaries of arrays by key.

    Args:
        dicts: Dictionaries with equal keys, at least one.
        axis: The new axis, or the axis to concatenate along.
        cat: Concatenate along an existing axis instead of stacking along a new one.

    Raises:
        ValueError: there is no dictionary, or the keys differ.
    """
    if not dicts:
        raise ValueError("dicts must hold at least one dictionary, not none")
    for other in dicts[1:]:
        if other.keys() != dicts[0].keys():
            raise ValueError(
                f"dicts must have the same keys; one has {sorted(dicts[0])}, another {sorted(other)}"
            )
    join = np.concatenate if cat else np.stack
    return {key: join([d[key] for d in dicts], axis=axis) for key in dicts[0]}


def gin_as_wandb_config() -> dict[str, Any]:
    """All gin settings that are bound or in use, as `{"scope/selector.argument": value}`.

    Values are those of `as_readable_json`. gin's own text is not parsed: values with "=" or line breaks are
    ambiguous in it.
    """
    config = importlib.import_module("gin.config")
    settings: dict[tuple[str, str], dict[str, Any]] = {}
    for source in (config._CONFIG, config._OPERATIVE_CONFIG):
        for key, arguments in source.items():
            settings.setdefault(key, {}).update(arguments)
    flat: dict[str, Any] = {}
    for (scope, selector), arguments in settings.items():
        name = config._REGISTRY.minimal_selector(selector)
        for argument, value in arguments.items():
            flat[f"{scope}/{name}.{argument}" if scope else f"{name}.{argument}"] = as_readable_json(value)
    return dict(sorted(flat.items()))


def as_readable_json(value: Any) -> Any:
    """A setting as JSON for people to read; nested values too.

    Classes and functions become their import path, a `functools.partial` the text of the call, and an object
    without a `repr` of its own a dictionary of its class and the arguments of its constructor that are attributes.
    Everything else that JSON does not have, such as infinity, becomes text.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, np.generic):
        return as_readable_json(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): as_readable_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_readable_json(item) for item in value]
    if isinstance(value, os.PathLike):
        return str(value)
    if isinstance(value, functools.partial):
        given = [str(as_readable_json(item)) for item in value.args]
        given += [f"{key}={as_readable_json(item)}" for key, item in value.keywords.items()]
        return f"{as_readable_json(value.func)}({', '.join(given)})"
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return f"{value.__module__}.{value.__qualname__}"
    has_repr = any("__repr__" in vars(cls) for cls in type(value).__mro__[:-1])
    if has_repr and not dataclasses.is_dataclass(value):
        return repr(value)
    arguments = [name for name in inspect.signature(type(value)).parameters if hasattr(value, name)]
    return {
        "class": as_readable_json(type(value)),
        **{name: as_readable_json(getattr(value, name)) for name in arguments},
    }
