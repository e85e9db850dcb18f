"""Helpers of training scripts: gin settings, classes chosen by name, common options, asynchronous modes.

`config.py` binds gin settings and chooses classes by their registered names; `scripts.py` declares the common
options and makes an Experiment from them. `from amago.cli_utils import *` also brings Experiment, AMAGOEnv, the
replay buffer, the base classes, the exploration wrappers and the registries' functions.
"""

from amago.agent import Agent, BaseAgent, MultiTaskAgent, get_agent_cls, list_registered_agents
from amago.cli_utils.config import (
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.cli_utils.scripts import (
    add_common_cli,
    create_experiment_from_cli,
    make_experiment_collect_only,
    make_experiment_learn_only,
    switch_async_mode,
)
from amago.envs import AMAGOEnv
from amago.envs.exploration import (
    BilevelEpsilonGreedy,
    EpsilonGreedy,
    ExplorationWrapper,
    get_exploration_cls,
    list_registered_explorations,
)
from amago.experiment import Experiment
from amago.loading import DiskTrajDataset, RLDataset
from amago.nets.traj_encoders import TrajEncoder, get_traj_encoder_cls, list_registered_traj_encoders
from amago.nets.tstep_encoders import TstepEncoder, get_tstep_encoder_cls, list_registered_tstep_encoders

switch_step_encoder = switch_tstep_encoder  # The name in older scripts.

__all__ = [
    "AMAGOEnv",
    "Agent",
    "BaseAgent",
    "BilevelEpsilonGreedy",
    "DiskTrajDataset",
    "EpsilonGreedy",
    "Experiment",
    "ExplorationWrapper",
    "MultiTaskAgent",
    "RLDataset",
    "TrajEncoder",
    "TstepEncoder",
    "add_common_cli",
    "create_experiment_from_cli",
    "get_agent_cls",
    "get_exploration_cls",
    "get_traj_encoder_cls",
    "get_tstep_encoder_cls",
    "list_registered_agents",
    "list_registered_explorations",
    "list_registered_traj_encoders",
    "list_registered_tstep_encoders",
    "make_experiment_collect_only",
    "make_experiment_learn_only",
    "switch_agent",
    "switch_async_mode",
    "switch_exploration",
    "switch_step_encoder",
    "switch_traj_encoder",
    "switch_tstep_encoder",
    "use_config",
]
