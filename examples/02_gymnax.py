"""Environments that step many copies of themselves: gymnax, in jax, on a GPU or the CPU.

Needs gymnax: pip install 'amago-envs[gymnax]'. One object is all actors, --env_mode is always
already_vectorized, and --parallel_actors (12) should be raised to hundreds. MemoryChain-bsuite and the
other memory tasks of bsuite are a good test of a sequence model; MemoryChain returns 1 at most, and the
others state their bounds in gymnax.

    python examples/02_gymnax.py --env MemoryChain-bsuite --parallel_actors 512 --run_name chain \\
        --buffer_dir runs --no_log

The full setting collects a million timesteps per actor and takes a million updates: plan for a GPU.
"""

import os
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

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
from amago.envs.builtin.gymnax_envs import GymnaxCompatibility
from amago.envs.builtin.optional import optional_import
from amago.nets.cnn import GridworldCNN


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--env", required=True, help="id of the environment, such as MemoryChain-bsuite")
    parser.add_argument("--max_seq_len", type=int, default=128, help="context length in timesteps")
    parser.add_argument("--eval_timesteps", type=int, default=1000, help="length of an evaluation, per actor")
    parser.set_defaults(env_mode="already_vectorized")
    args = parse_args(parser, argv, smoke="--env MemoryChain-bsuite --max_seq_len 3")
    args.env_mode = "already_vectorized"
    # Otherwise jax takes most of the GPU's memory for itself when it starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    gymnax = optional_import("gymnax", extra="gymnax")

    def make_env() -> AMAGOEnv:
        env, params = gymnax.make(args.env)
        vec_env = GymnaxCompatibility(env, num_envs=args.parallel_actors, params=params)
        return AMAGOEnv(vec_env, env_name=f"gymnax_{args.env}", batched_envs=args.parallel_actors)

    config: dict[str, Any] = {}
    shape = make_env().observation_space["observation"].shape
    if len(shape) == 3:
        tstep_encoder = switch_tstep_encoder(
            config, "cnn", cnn_type=GridworldCNN, channels_first=shape[0] == min(shape)
        )
    else:
        width = shape[0]
        tstep_encoder = switch_tstep_encoder(
            config, "ff", n_layers=2, d_hidden=max(width // 3, 128), d_output=max(width // 4, 96)
        )
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_gymnax_{args.env}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=20 * args.max_seq_len,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            val_timesteps_per_epoch=args.eval_timesteps,
            save_trajs_as="npz-compressed",
            grad_clip=2.0,
            l2_coeff=1e-4,
        )

    return run_trials(args, group_name, make_experiment, make_env, test_timesteps=10_000)


if __name__ == "__main__":
    main()
