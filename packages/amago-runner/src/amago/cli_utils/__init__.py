"""What training scripts share: gin settings in one call, parts chosen by name, common options, async modes.

`configuration.py` binds gin values, `switches.py` chooses parts by name, `scripts.py` turns command-line options
into an Experiment and an Experiment into a collector or a learner.
"""

from amago.cli_utils.configuration import use_config
from amago.cli_utils.scripts import (
    add_common_cli,
    create_experiment_from_cli,
    make_experiment_collect_only,
    make_experiment_learn_only,
    switch_async_mode,
)
from amago.cli_utils.switches import (
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
)

switch_step_encoder = switch_tstep_encoder  # the name that older scripts use

__all__ = [
    "add_common_cli",
    "create_experiment_from_cli",
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
