"""Memory: the goal's side is shown in the first step and needed in the last, 50 steps later (T-Maze).

python examples/tmaze.py --run_name tmaze --buffer_dir runs --no_log
python examples/tmaze.py --run_name tmaze-ff --buffer_dir runs --no_log --traj_encoder ff
"""

from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt
from common import make_parser, train

from amago import Experiment
from amago.cli_utils import (
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
class FirstAndLastSteps(EpsilonGreedy):
    """Epsilon-greedy in the first and last step of an episode only; any wrong step in between costs the goal."""

    def __init__(
        self, amago_env: AMAGOEnv, corridor_length: int = gin.REQUIRED, steps_anneal: int = 1_000_000
    ) -> None:
        super().__init__(amago_env, steps_anneal=steps_anneal)
        self.corridor_length = corridor_length

    def current_eps(self, local_step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Epsilon of each environment; 0 in the corridor."""
        eps = super().current_eps(local_step)
        eps[(local_step > 0) & (local_step < self.corridor_length)] = 0.0
        return eps


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and returns the metrics of the final evaluation."""
    parser = make_parser("Remember where the goal is (T-Maze, passive).", eval_episodes=500)
    parser.add_argument("--corridor_length", type=int, default=50, help="steps between cue and choice")
    parser.set_defaults(memory_size=64, memory_layers=1, parallel_actors=16)
    parser.set_defaults(epochs=80, timesteps_per_epoch=102, batches_per_epoch=25, batch_size=24)
    args = parser.parse_args(argv)
    length = args.corridor_length

    def make_env() -> AMAGOEnv:
        return AMAGOEnv(TMazeAltPassive(corridor_length=length, penalty=-1 / length), env_name="T-Maze")

    config: dict[str, Any] = {
        "Actor.d_hidden": 64,
        "NCritics.d_hidden": 64,
        "TformerTrajEncoder.n_heads": 4,
        "FirstAndLastSteps.corridor_length": length,
        "FirstAndLastSteps.steps_anneal": int(0.8 * args.epochs * args.timesteps_per_epoch),
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", d_hidden=64, d_output=64, n_layers=1)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, tau=0.01)
    use_config(config, args.configs)

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=length + 1,
            group_name="examples",
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=FirstAndLastSteps,
            val_timesteps_per_epoch=2 * (length + 1),
            learning_rate=5e-4,
            lr_warmup_steps=100,
            # A sampled action that wastes one step in the corridor costs the goal.
            sample_actions_val=False,
        )

    return train(args, make_experiment, make_env)


if __name__ == "__main__":
    main()
