"""The longest recall of a sequence model: a cue in the first step decides the last, --horizon steps later.

The passive T-Maze of Ni et al. 2023, "When Do Transformers Shine in RL?". The goal gives 1, each step that
does not lead down the corridor costs 1 / horizon, and a policy without memory guesses the side: 0.5 on
average. Random actions would hardly ever reach the goal, so exploration is rare in the corridor; the class
that does this is the other thing to learn from this script.

    python examples/04_tmaze.py --horizon 400 --run_name tmaze400 --buffer_dir runs --no_log

The full setting collects 12 million timesteps and takes a million updates: plan for a GPU. A corridor of
50 steps is learned within minutes on two CPU cores, with the networks and learning rates of the .gin file;
with --traj_encoder ff it is not, whatever the time.

    python examples/04_tmaze.py --horizon 50 --configs examples/tmaze.gin --run_name tmaze50 --buffer_dir runs \\
        --no_log --memory_size 64 --memory_layers 1 --env_mode sync --dloader_workers 0 --parallel_actors 16 \\
        --epochs 80 --timesteps_per_epoch 102 --batches_per_epoch 25
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
from common import parse_args, run_trials

from amago import Experiment
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.envs.builtin.tmaze import TMazeAltPassive
from amago.envs.exploration import EpsilonGreedy


@gin.configurable
class TMazeExploration(EpsilonGreedy):
    """Epsilon-greedy at both ends of the maze; in the corridor epsilon is multiplied by 0.5 / horizon.

    Args:
        amago_env: the environment.
        start_window: steps after this one belong to the corridor,
        end_window: except for this many at the end.
        horizon: length of the corridor.
        eps_start: epsilon at the start of training, at both ends.
        eps_end: epsilon after `steps_anneal`.
        steps_anneal: steps of this actor over which the schedule runs.
    """

    def __init__(
        self,
        amago_env: AMAGOEnv,
        start_window: int = 0,
        end_window: int = 3,
        horizon: int = gin.REQUIRED,
        eps_start: float = 1.0,
        eps_end: float = 0.01,
        steps_anneal: int = 100_000,
    ) -> None:
        super().__init__(amago_env, eps_start=eps_start, eps_end=eps_end, steps_anneal=steps_anneal)
        self.start_window = start_window
        self.end_window = end_window
        self.horizon = horizon

    def current_eps(self, local_step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Epsilon of each environment; `local_step` has one entry for each, too."""
        eps = super().current_eps(local_step)
        in_corridor = (self.start_window < local_step) & (local_step < self.horizon - self.end_window)
        eps[in_corridor] *= 0.5 / self.horizon
        return eps


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--horizon", type=int, required=True, help="length of the corridor")
    args = parse_args(parser, argv, smoke="--horizon 10")
    horizon = args.horizon

    def make_env() -> AMAGOEnv:
        maze = TMazeAltPassive(corridor_length=horizon, penalty=-1.0 / horizon)
        return AMAGOEnv(maze, env_name=f"TMazePassive-H{horizon}")

    config: dict[str, Any] = {"TMazeExploration.horizon": horizon}
    tstep_encoder = switch_tstep_encoder(
        config, "ff", n_layers=2, d_hidden=128, d_output=128, normalize_inputs=False
    )
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=100.0, gamma=0.9999)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_TMazePassive-H{horizon}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=horizon + 1,
            traj_save_len=horizon + 1,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=TMazeExploration,
            val_timesteps_per_epoch=horizon + 1,
            # One sampled action that is not the best would waste a step of the corridor, and with it the goal.
            sample_actions_train=False,
            sample_actions_val=False,
        )

    return run_trials(args, group_name, make_experiment, make_env, test_timesteps=5 * horizon)


if __name__ == "__main__":
    main()
