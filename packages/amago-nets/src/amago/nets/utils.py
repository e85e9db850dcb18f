"""Symlog, activation logging, and re-exports of `InputNorm`, `SlowAdaptiveRational` and `activation_switch`."""

from typing import Any

import torch
from torch import Tensor

from amago.nets.activations import SlowAdaptiveRational, activation_switch
from amago.nets.input_norm import InputNorm

__all__ = ["InputNorm", "SlowAdaptiveRational", "activation_switch", "add_activation_log", "symexp", "symlog"]


def symlog(x: Tensor) -> Tensor:
    """sign(x) log(1 + |x|): a logarithm for numbers of both signs (Hafner et al. 2023, eq. 1)."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    """sign(x) (exp(|x|) - 1), the inverse of `symlog`."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


def add_activation_log(root_key: str, activation: Tensor, log_dict: dict[str, Any] | None = None) -> None:
    """Logs the maximum, minimum, standard deviation and mean of `activation` as "activation-{root_key}-max" etc.

    Values stay tensors on their device, so that logging does not synchronise. Does nothing if `log_dict` is None.
    """
    if log_dict is None or activation.numel() == 0:
        return
    with torch.no_grad():
        values = activation.detach().float()
        log_dict[f"activation-{root_key}-max"] = values.max()
        log_dict[f"activation-{root_key}-min"] = values.min()
        log_dict[f"activation-{root_key}-std"] = values.std(correction=0)
        log_dict[f"activation-{root_key}-mean"] = values.mean()
