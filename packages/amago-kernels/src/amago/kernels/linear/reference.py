"""Linear layers by torch's own function: the reference."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, leaky: float | None) -> Tensor:
    """See `amago.kernels.linear`."""
    if leaky is None and bias is not None and x.dim() <= 3:
        return F.linear(x, weight, bias)
    # Two axes: with more, torch may use a batched product of the repeated weight, and returns a view, which
    # autograd cannot overwrite in place for free.
    out = F.linear(x.reshape(-1, x.shape[-1]), weight, bias)
    if leaky is not None:
        out = F.leaky_relu(out, leaky, inplace=True)
    return out.view(*x.shape[:-1], weight.shape[0])
