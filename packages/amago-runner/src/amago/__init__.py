"""AMAGO: an off-policy actor-critic agent for long sequences.

The namespace package `amago` is shared by five distributions; this file belongs to amago-runner. It extends the
package's path to the others and imports its exports on first use, which keeps `import amago` fast.
"""

import os
import pkgutil
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amago import agent as agent
    from amago import cli_utils as cli_utils
    from amago import envs as envs
    from amago import experiment as experiment
    from amago import hindsight as hindsight
    from amago import loading as loading
    from amago import nets as nets
    from amago import utils as utils
    from amago.agent import Agent as Agent
    from amago.agent import get_agent_cls as get_agent_cls
    from amago.agent import list_registered_agents as list_registered_agents
    from amago.agent import register_agent as register_agent
    from amago.envs.exploration import ExplorationWrapper as ExplorationWrapper
    from amago.envs.exploration import get_exploration_cls as get_exploration_cls
    from amago.envs.exploration import list_registered_explorations as list_registered_explorations
    from amago.envs.exploration import register_exploration as register_exploration
    from amago.experiment import Experiment as Experiment
    from amago.nets.traj_encoders import TrajEncoder as TrajEncoder
    from amago.nets.traj_encoders import get_traj_encoder_cls as get_traj_encoder_cls
    from amago.nets.traj_encoders import list_registered_traj_encoders as list_registered_traj_encoders
    from amago.nets.traj_encoders import register_traj_encoder as register_traj_encoder
    from amago.nets.tstep_encoders import TstepEncoder as TstepEncoder
    from amago.nets.tstep_encoders import get_tstep_encoder_cls as get_tstep_encoder_cls
    from amago.nets.tstep_encoders import list_registered_tstep_encoders as list_registered_tstep_encoders
    from amago.nets.tstep_encoders import register_tstep_encoder as register_tstep_encoder
    from amago.policy import Policy as Policy

__path__ = pkgutil.extend_path(__path__, __name__)

# A constant, since a checkout may be imported without being installed; equal to the version in pyproject.toml.
__version__ = "4.0.0"

_SUBMODULES = ("agent", "cli_utils", "envs", "experiment", "hindsight", "loading", "nets", "utils")
_EXPORTS = {
    "amago.agent": ("Agent", "get_agent_cls", "list_registered_agents", "register_agent"),
    "amago.envs.exploration": (
        "ExplorationWrapper",
        "get_exploration_cls",
        "list_registered_explorations",
        "register_exploration",
    ),
    "amago.experiment": ("Experiment",),
    "amago.nets.traj_encoders": (
        "TrajEncoder",
        "get_traj_encoder_cls",
        "list_registered_traj_encoders",
        "register_traj_encoder",
    ),
    "amago.nets.tstep_encoders": (
        "TstepEncoder",
        "get_tstep_encoder_cls",
        "list_registered_tstep_encoders",
        "register_tstep_encoder",
    ),
    "amago.policy": ("Policy",),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = [
    *_SUBMODULES,
    *_MODULE_OF,
]


def _refuse_a_second_amago() -> None:
    """Raises ImportError if the distribution "amago" is installed too.

    Both install `amago/__init__.py` and other equal paths, and overwrite each other's files. Folders are listed
    directly because importlib.metadata is slower than the rest of this import.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name == "amago.egg-info" or (
                name.startswith("amago-") and name.endswith((".dist-info", ".egg-info"))
            ):
                raise ImportError(
                    f"the distribution 'amago' is installed beside 'amago-runner' ({os.path.join(folder, name)}); "
                    "both provide the package 'amago' and overwrite each other's files. Keep one: "
                    "`pip uninstall -y amago`, then restore the files that it removed with `pip install "
                    "--force-reinstall --no-deps amago-kernels amago-nets amago-envs amago-agents amago-runner`."
                )


_refuse_a_second_amago()


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"amago.{name}")
    if name in _MODULE_OF:
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'amago' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
