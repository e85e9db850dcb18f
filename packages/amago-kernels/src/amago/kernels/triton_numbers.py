"""Mathematical functions that Triton's language lacks."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0: the quotient corrects the rounding of 1 + x (Higham 2002, sec. 1.14.1)."""
    up = 1.0 + x
    return tl.where(up == 1.0, x, tl.log(up) * (x / tl.where(up == 1.0, 1.0, up - 1.0)))


@triton.jit
def expm1(x):
    """exp(x) - 1 for x >= 0, corrected for cancellation (Higham 2002, sec. 1.14.1)."""
    up = tl.exp(x)
    close = (up - 1.0) * (x / tl.where(up == 1.0, 1.0, tl.log(up)))
    return tl.where(up == 1.0, x, tl.where(x > 1.0, up - 1.0, close))
