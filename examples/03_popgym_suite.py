"""Memory: any task of POPGym, or all of them at once, with one setting for all (Morad et al. 2023).

Needs popgym: pip install 'amago-envs[popgym]'. Returns are in [-1, 1]. With --multidomain one policy plays
27 tasks in turn, each with a first attempt that does not count, in which it must find out which task it
is.

    python examples/03_popgym_suite.py --env AutoencodeEasy --run_name autoencode --buffer_dir runs --no_log
    python examples/03_popgym_suite.py --multidomain --run_name all --buffer_dir runs --no_log

The full setting, with the Transformer of the AMAGO paper (width 256, 3 layers), collects 12 million
timesteps and takes a million updates on sequences of up to 2000: plan for a GPU. Tasks of the Easy level
need far less; shorten exploration with them, too (a .gin file with `EpsilonGreedy.steps_anneal =
100_000`).
"""

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
from amago.envs.builtin.popgym_envs import MultiDomainPOPGymAMAGO, POPGymAMAGO
from amago.nets.transformer import FlashAttention

# Many long horizons: rewards of most tasks come at the end of hundreds of steps.
GAMMAS = [0.1, 0.7, 0.9, 0.93, 0.95, 0.98, 0.99, 0.992, 0.994, 0.995, 0.997, 0.998, 0.999]
GAMMAS += [0.9991, 0.9992, 0.9993, 0.9994, 0.9995]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--env", default="AutoencodeEasy", help="task, such as RepeatPreviousEasy")
    parser.add_argument("--max_seq_len", type=int, default=2000, help="context length in timesteps")
    parser.add_argument("--multidomain", action="store_true", help="all tasks at once, in place of --env")
    args = parse_args(parser, argv, smoke="--env RepeatPreviousEasy --timesteps_per_epoch 110")

    def make_env() -> AMAGOEnv:
        if args.multidomain:
            return MultiDomainPOPGymAMAGO()
        return POPGymAMAGO(f"popgym-{args.env}-v0", truncated_is_done=True)

    horizon = max(args.max_seq_len, 2000)  # no rollout is longer
    config: dict[str, Any] = {
        "NCriticsTwoHot.min_return": None,
        "NCriticsTwoHot.max_return": None,
        "NCriticsTwoHot.output_bins": 64,
        "binary_filter.threshold": 1e-3,
        "Discrete.clip_prob_high": 1.0,
        "Discrete.clip_prob_low": 1e-6,
        "Multigammas.discrete": GAMMAS,
    }
    tstep_encoder = switch_tstep_encoder(config, "ff", n_layers=2, d_hidden=512, d_output=200)
    extra: dict[str, Any] = {}
    if args.traj_encoder == "transformer":
        extra = {"pos_emb": "learnable", "attention_type": FlashAttention}
        config["LearnablePosEmb.max_time_idx"] = horizon
    traj_encoder = switch_traj_encoder(
        config, args.traj_encoder, args.memory_size, args.memory_layers, **extra
    )
    agent = switch_agent(
        config, args.agent_type, reward_multiplier=200.0 if args.multidomain else 100.0, tau=0.0025
    )
    exploration = switch_exploration(config, "egreedy", steps_anneal=1_000_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_popgym_{'MultiDomain' if args.multidomain else args.env}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=horizon,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=horizon,
            learning_rate=1e-4,
            grad_clip=1.0,
            lr_warmup_steps=2000,
        )

    return run_trials(args, group_name, make_experiment, make_env, test_timesteps=20_000)


if __name__ == "__main__":
    main()
