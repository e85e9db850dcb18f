"""`Multigammas`: the auxiliary discounts that all heads are trained for."""

from __future__ import annotations

from collections.abc import Sequence

import gin

_DEFAULT = [0.1, 0.9, 0.95, 0.97, 0.99, 0.995]


@gin.configurable(module="amago.agent")
class Multigammas:
    """Auxiliary discounts, trained in addition to the one that acts (Fedus et al. 2019).

    Args:
        discrete: discounts for discrete actions, each in [0, 1].
        continuous: discounts for all other actions, each in [0, 1].

    Raises:
        ValueError: if a discount lies outside [0, 1].
    """

    def __init__(self, discrete: Sequence[float] = _DEFAULT, continuous: Sequence[float] = _DEFAULT) -> None:
        self.discrete = list(discrete)
        self.continuous = list(continuous)
        for name, gammas in (("discrete", self.discrete), ("continuous", self.continuous)):
            if any(not 0.0 <= gamma <= 1.0 for gamma in gammas):
                raise ValueError(f"Multigammas.{name} must hold discounts between 0 and 1, got {gammas}")
