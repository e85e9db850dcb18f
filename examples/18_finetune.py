"""Fine-tuning: a policy that balances an ordinary pole learns to balance a long one.

Trains a teacher on CartPole, then a student on CartPole with a pole of --pole_length. The student begins
with the teacher's encoders, keeps the timestep encoder as it is, learns new heads, and moves the trajectory
encoder at a tenth of the learning rate; all rates fall over the run.

    python examples/18_finetune.py --run_name finetune --buffer_dir runs --no_log --epochs 20 --env_mode sync \\
        --dloader_workers 0 --timesteps_per_epoch 100 --batches_per_epoch 50 --traj_encoder ff \\
        --memory_size 64 --memory_layers 1
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from common import parse_args, run_trials

from amago import Experiment
from amago.agent import BaseAgent
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
from amago.experiment.schedule import LinearDecay
from amago.finetuning import load_policy_weights, make_adamw, parameter_groups


class FineTuning(Experiment):
    """A run that begins with the encoders of another one."""

    teacher: Path

    def init_agent(self) -> BaseAgent:
        """A new agent with the teacher's encoders; the timestep encoder stays as it is."""
        agent = super().init_agent()
        result = load_policy_weights(agent, self.teacher, only=("tstep_encoder", "traj_encoder"))
        print(f"{len(result.loaded)} weights of {self.teacher} loaded, {len(result.skipped)} new")
        agent.freeze("tstep_encoder")
        return agent

    def init_optimizer(self, policy: BaseAgent) -> torch.optim.Optimizer:
        """AdamW with a lower rate for the trajectory encoder."""
        groups = parameter_groups(policy, self.learning_rate, {"traj_encoder": 0.1 * self.learning_rate})
        return make_adamw(groups, self.learning_rate, self.l2_coeff, self.DEVICE)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains teacher and student; returns the metrics of the student's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--pole_length", type=float, default=1.5, help="half the student's pole; usual: 0.5")
    args = parse_args(parser, argv, smoke="--timesteps_per_epoch 100")

    config: dict[str, Any] = {}
    tstep_encoder = switch_tstep_encoder(config, "ff", n_layers=1, d_hidden=128, d_output=64)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=1.0, gamma=0.99, tau=0.05)
    steps = args.epochs * args.timesteps_per_epoch
    exploration = switch_exploration(config, "egreedy", steps_anneal=max(1, steps // 2))
    use_config(config, args.configs)

    def train(cls: type[Experiment], name: str, pole_length: float) -> dict[str, float]:
        def make_env() -> AMAGOEnv:
            env = gym.make("CartPole-v1")
            env.unwrapped.length = pole_length
            env.unwrapped.polemass_length = env.unwrapped.masspole * pole_length
            return AMAGOEnv(env, f"CartPole-{pole_length}")

        def make_experiment(run_name: str) -> Experiment:
            experiment = create_experiment_from_cli(
                args,
                experiment_type=cls,
                make_train_env=make_env,
                make_val_env=make_env,
                max_seq_len=32,
                traj_save_len=100,
                group_name=name,
                run_name=run_name,
                agent_type=agent,
                tstep_encoder_type=tstep_encoder,
                traj_encoder_type=traj_encoder,
                exploration_wrapper_type=exploration,
                val_timesteps_per_epoch=500,
                padded_sampling="both",
                learning_rate=5e-4,
                lr_warmup_steps=100,
                sample_actions_val=False,
                callbacks=[LinearDecay(args.epochs * args.batches_per_epoch, end=0.1)],
            )
            if isinstance(experiment, FineTuning):
                experiment.teacher = experiment.run_dir.parent / f"{args.run_name}_teacher_trial_0"
            return experiment

        return run_trials(args, name, make_experiment, make_env, test_timesteps=2_000)

    train(Experiment, f"{args.run_name}_teacher", 0.5)
    return train(FineTuning, f"{args.run_name}_student", args.pole_length)


if __name__ == "__main__":
    main()
