"""Action distributions.

A `PolicyOutput` declares the width of its parameter vector (`input_dimension`) and turns the actor's output into a
distribution with the interface of `torch.distributions`.

| class | actions | log_prob |
|---|---|---|
| `Discrete` | index of one of n, (..., 1) | (...) |
| `MultiDiscrete` | concatenated one-hots | (..., 1) |
| `Multibinary` | zeros and ones | (..., A), per bit |
| `TanhGaussian` | [-1, 1] | (..., A), per dimension |
| `GMM` | [-1, 1], correlated by the mixture | (..., 1) |
| `Beta` | [-1, 1] | (..., A), per dimension |
"""

from amago.nets.policy_dists.base import PolicyOutput, softplus_bounded_positive, tanh_bounded_positive
from amago.nets.policy_dists.beta import Beta
from amago.nets.policy_dists.discrete import (
    ClippedCategorical,
    Discrete,
    DiscreteLikeContinuous,
    _Categorical,
)
from amago.nets.policy_dists.gaussian import GMM, TanhGaussian
from amago.nets.policy_dists.multibinary import Multibinary
from amago.nets.policy_dists.multidiscrete import MultiDiscrete

__all__ = [
    "GMM",
    "Beta",
    "ClippedCategorical",
    "Discrete",
    "DiscreteLikeContinuous",
    "MultiDiscrete",
    "Multibinary",
    "PolicyOutput",
    "TanhGaussian",
    "_Categorical",
    "softplus_bounded_positive",
    "tanh_bounded_positive",
]
