"""Action distributions: what an actor's output vector means.

A `PolicyOutput` says how many numbers it needs per action vector (`input_dimension`) and turns them into a
distribution object with the usual `torch.distributions` interface. One file per family.

| class | actions | log_prob |
|---|---|---|
| `Discrete` | index of one of n | (...) |
| `MultiDiscrete` | concatenated one-hots | (..., 1) |
| `Multibinary` | zeros and ones | (..., A), per bit |
| `TanhGaussian` | [-1, 1] | (..., A), per dimension |
| `GMM` | [-1, 1], correlated by the mixture | (..., 1) |
| `Beta` | [-1, 1] | (..., A), per dimension |
"""

from amago.nets.policy_dists.base import PolicyOutput, softplus_bounded_positive, tanh_bounded_positive
from amago.nets.policy_dists.beta import Beta
from amago.nets.policy_dists.bits import Multibinary
from amago.nets.policy_dists.discrete import ClippedCategorical, Discrete, DiscreteLikeContinuous
from amago.nets.policy_dists.gaussian import GMM, TanhGaussian
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
    "softplus_bounded_positive",
    "tanh_bounded_positive",
]
