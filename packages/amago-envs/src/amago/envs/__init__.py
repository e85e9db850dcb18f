"""Environments: a wrapper for any gymnasium environment, exploration, vectorised stepping and recording.

Builtin environments are in `amago.envs.builtin`.
"""

from typing import TYPE_CHECKING, Any

import gymnasium

from amago.envs.gymnasium_compat import check_gymnasium_version

check_gymnasium_version(gymnasium.__version__)

from amago.envs.amago_env import AMAGOEnv  # noqa: E402 (the version check comes first)
from amago.envs.builtin.kshot import KShot  # noqa: E402
from amago.envs.check_env import EnvReport, check_env  # noqa: E402
from amago.envs.exploration import (  # noqa: E402
    BilevelEpsilonGreedy,
    EpsilonGreedy,
    ExplorationWrapper,
    get_exploration_cls,
    list_registered_explorations,
    register_exploration,
)
from amago.envs.metrics import (  # noqa: E402
    AMAGO_ENV_LOG_PREFIX,
    EpisodeStats,
    ReturnHistory,
    SpecialMetricHistory,
)

if TYPE_CHECKING:
    from amago.envs.recorder import EnvCreator as EnvCreator
    from amago.envs.recorder import SequenceWrapper as SequenceWrapper

__all__ = [
    "AMAGO_ENV_LOG_PREFIX",
    "AMAGOEnv",
    "BilevelEpsilonGreedy",
    "EnvCreator",
    "EnvReport",
    "EpisodeStats",
    "EpsilonGreedy",
    "ExplorationWrapper",
    "KShot",
    "ReturnHistory",
    "SequenceWrapper",
    "SpecialMetricHistory",
    "check_env",
    "get_exploration_cls",
    "list_registered_explorations",
    "register_exploration",
]


def __getattr__(name: str) -> Any:
    # The recorder imports this package, so these two names are imported lazily.
    if name in ("EnvCreator", "SequenceWrapper"):
        from amago.envs import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
