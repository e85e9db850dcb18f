"""Adapting to a hidden goal in continuous control: a cheetah that must run at a speed it is not told.

Needs mujoco: pip install 'amago-envs[mujoco]'. The reward tells how far the velocity is from the target,
minus the cost of the action, so the agent finds the target out by running; a return is at most 0. The
script shows how to split tasks between training and evaluation (override `sample_target_velocity`) and how
to name them, so that metrics are reported by group of tasks.

    python examples/12_half_cheetah_vel.py --run_name cheetah --buffer_dir runs --no_log

With the ordinary reward policies exceed a velocity of 10, so --task_max_velocity may be raised up to that.
The full setting collects 12 million timesteps and takes a million updates: plan for a GPU.
"""

import math
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from common import parse_args, run_trials

from amago import Experiment
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.envs.builtin.half_cheetah_v4_vel import HalfCheetahV4_MetaVelocity

EPISODE_STEPS = 1000


class TrainCheetah(HalfCheetahV4_MetaVelocity):
    """The tasks of training: edit this to leave some of them out."""

    def sample_target_velocity(self) -> float:
        """A target for the next episode, by default uniform over the range."""
        return super().sample_target_velocity()


class TestCheetah(HalfCheetahV4_MetaVelocity):
    """The tasks of evaluation."""

    def sample_target_velocity(self) -> float:
        """A target for the next episode, by default uniform over the range."""
        return super().sample_target_velocity()


class CheetahAMAGOEnv(AMAGOEnv):
    """Reports metrics by intervals of the target velocity."""

    def __init__(self, env: HalfCheetahV4_MetaVelocity) -> None:
        super().__init__(env)
        self.cheetah = env

    @property
    def env_name(self) -> str:
        """The interval of the current target, such as HalfCheetahVelocity-Vel-[1, 2]."""
        target = self.cheetah.target_velocity
        return f"HalfCheetahVelocity-Vel-[{math.floor(target)}, {math.ceil(target)}]"


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--policy_seq_len", type=int, default=32, help="context length in timesteps")
    parser.add_argument("--eval_episodes_per_actor", type=int, default=1)
    parser.add_argument("--task_min_velocity", type=float, default=0.0)
    parser.add_argument("--task_max_velocity", type=float, default=3.0)
    args = parse_args(parser, argv, smoke="--policy_seq_len 8")

    velocities = {"task_min_velocity": args.task_min_velocity, "task_max_velocity": args.task_max_velocity}

    def make_train_env() -> AMAGOEnv:
        return CheetahAMAGOEnv(TrainCheetah(**velocities))

    def make_test_env() -> AMAGOEnv:
        return CheetahAMAGOEnv(TestCheetah(**velocities))

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(config, "ff")
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=1.0, gamma=0.99, tau=0.005)
    exploration = switch_exploration(config, "egreedy", steps_anneal=500_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_half_cheetah_vel"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_train_env,
            make_val_env=make_test_env,
            max_seq_len=args.policy_seq_len,
            traj_save_len=6 * args.policy_seq_len,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=(EPISODE_STEPS + 1) * args.eval_episodes_per_actor,
            learning_rate=3e-4,
            grad_clip=2.0,
        )

    return run_trials(
        args, group_name, make_experiment, make_test_env, test_timesteps=10_000, smoke_steps=EPISODE_STEPS
    )


if __name__ == "__main__":
    main()
