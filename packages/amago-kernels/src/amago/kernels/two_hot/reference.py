"""The two-hot operations written out with dense labels: the reference.

Statistics are in float32, or in float64 if the logits are. Autograd finds the gradients.

Shapes: n bins, other leading axes are free.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from amago.kernels.precision import accumulation_dtype
from amago.kernels.two_hot.bins import Bins


def two_hot_labels(target: Tensor, bins: Bins) -> Tensor:
    """Labels (..., n) that share a return (...) between the two bins around it, so that their mean is the return.

    Imani & White 2018, sec. 4; Hafner et al. 2023, eq. 9.
    """
    position = bins.position(target).unsqueeze(-1)
    bin_index = torch.arange(bins.n, dtype=position.dtype, device=position.device)
    # A triangle of width 2 around the position; a NaN stays NaN.
    return (1.0 - (position - bin_index).abs()).clamp_min(0.0)


def hl_gauss_labels(target: Tensor, bins: Bins, sigma: float) -> Tensor:
    """Labels (..., n): what a normal distribution around the return (...) gives to each bin's interval.

    A bin's interval ends half-way to its neighbours; the distribution is cut off at the outer ends and
    normalised. `sigma` is its standard deviation in bin widths (Farebrother et al. 2024, sec. 3.1).
    """
    position = bins.position(target).unsqueeze(-1)
    edges = torch.arange(bins.n + 1, dtype=position.dtype, device=position.device) - 0.5
    cdf = torch.erf((edges - position) / (sigma * math.sqrt(2.0)))  # times two, minus one
    return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    bins: Bins,
    mask: Tensor | None,
    weight: Tensor | None,
    sigma: float | None,
) -> Tensor:
    """See `amago.kernels.hl_gauss_cross_entropy`; `two_hot_cross_entropy` if sigma is None."""
    dtype = accumulation_dtype(logits)
    target = target.detach().to(dtype)
    labels = two_hot_labels(target, bins) if sigma is None else hl_gauss_labels(target, bins, sigma)
    if mask is not None:  # 0 times the gradient of a non-finite row would be NaN
        logits = torch.where(mask.unsqueeze(-1), logits, torch.zeros_like(logits))
    loss = -(labels * F.log_softmax(logits.to(dtype), dim=-1)).sum(dim=-1)
    if weight is not None:
        loss = loss * weight.detach().to(dtype)
    return loss if mask is None else torch.where(mask, loss, torch.zeros_like(loss))


def mean(logits: Tensor, bins: Bins) -> Tensor:
    """See `amago.kernels.two_hot_mean`."""
    dtype = accumulation_dtype(logits)
    probs = torch.softmax(logits.to(dtype), dim=-1)
    return bins.returns((probs * bins.points(dtype, logits.device)).sum(dim=-1))
