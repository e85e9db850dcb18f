"""`Multigammas`: the auxiliary discounts that all heads are trained for."""

from __future__ import annotations

from collections.abc import Sequence

import gin

from amago.nets.arguments import Probability, check_arguments

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

    @check_arguments
    def __init__(
        self, discrete: Sequence[Probability] = _DEFAULT, continuous: Sequence[Probability] = _DEFAULT
    ) -> None:
        self.discrete = list(discrete)
        self.continuous = list(continuous)
