"""Memory: the goal's side is shown in the first step and needed in the last, 50 steps later (T-Maze).

python examples/tmaze.py --run_name tmaze --buffer_dir runs --no_log
python examples/tmaze.py --run_name tmaze-ff --buffer_dir runs --no_log --traj_encoder ff
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import numpy.typing as npt

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
class FirstAndLastSteps(EpsilonGreedy):
    """Epsilon-greedy in the first and the last step of the corridor: one slip in between costs the goal."""

    def __init__(self, amago_env: AMAGOEnv, corridor_length: int = gin.REQUIRED, **schedule: Any) -> None:
        super().__init__(amago_env, **schedule)
        self.corridor_length = corridor_length

    def current_eps(self, local_step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Epsilon of each environment, 0 between the first and the last step."""
        eps = super().current_eps(local_step)
        eps[(local_step > 0) & (local_step < self.corridor_length)] = 0.0
        return eps


def parse_args(argv: Sequence[str] | None) -> Namespace:
    """The common options, with defaults for two CPU cores and a few minutes."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--corridor_length", type=int, default=50, help="steps between cue and choice")
    parser.add_argument("--eval_episodes", type=int, default=500, help="episodes of the final evaluation")
    parser.set_defaults(
        memory_size=64,
        memory_layers=1,
        env_mode="sync",
        parallel_actors=16,
        epochs=80,
        timesteps_per_epoch=102,
        batches_per_epoch=25,
        batch_size=24,
        dset_max_size=2000,
        dloader_workers=0,
        val_interval=10,
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains, and returns the metrics of the final evaluation."""
    args = parse_args(argv)
    length = args.corridor_length

    def make_env() -> AMAGOEnv:
        maze = TMazeAltPassive(corridor_length=length, penalty=-1 / length, goal_reward=1.0)
        return AMAGOEnv(maze, env_name="T-Maze")

    config: dict[str, Any] = {
        "Actor.d_hidden": 64,
        "NCritics.d_hidden": 64,
        "FirstAndLastSteps.corridor_length": length,
        "FirstAndLastSteps.steps_anneal": int(0.8 * args.epochs * args.timesteps_per_epoch),
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", d_hidden=64, d_output=64, n_layers=1)
    heads = {"n_heads": 4} if args.traj_encoder == "transformer" else {}
    traj_encoder = switch_traj_encoder(
        config, args.traj_encoder, args.memory_size, args.memory_layers, **heads
    )
    agent = switch_agent(config, args.agent_type, tau=0.01)
    use_config(config, args.configs)
    experiment = create_experiment_from_cli(
        args,
        make_train_env=make_env,
        make_val_env=make_env,
        max_seq_len=length + 1,
        group_name="examples",
        run_name=args.run_name,
        agent_type=agent,
        tstep_encoder_type=tstep_encoder,
        traj_encoder_type=traj_encoder,
        exploration_wrapper_type=FirstAndLastSteps,
        val_timesteps_per_epoch=2 * (length + 1),
        learning_rate=5e-4,
        lr_warmup_steps=100,
        # A policy that draws its actions slips once in a corridor too often.
        sample_actions_val=False,
    )
    experiment.start()
    experiment.learn()
    metrics = experiment.evaluate_test(make_env, episodes=args.eval_episodes)
    experiment.close()
    return metrics


if __name__ == "__main__":
    print(main())
