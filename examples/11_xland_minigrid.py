"""A huge distribution of tasks: k attempts at one of the million rule sets of XLand-MiniGrid.

Introduced by Nikulin et al. 2023. Needs xminigrid: pip install 'amago-envs[xland]'. The goal is observed,
the rules by which objects turn into others are not. An attempt gives at most 1, so a return is below
--k_shots; "Ep {i} Return" should rise with i. The environment steps all actors at once in jax, on a GPU if
jax has one and on the CPU otherwise: --env_mode is always already_vectorized, and --parallel_actors (12)
should be raised to hundreds. The script also shows an encoder of your own for grids of ids.

    python examples/11_xland_minigrid.py --benchmark small-1m --parallel_actors 512 --run_name xland \\
        --buffer_dir runs --no_log

The benchmark is downloaded at its first use. Not solved by anybody. The full setting collects a million
timesteps per actor and takes a million updates on sequences of 2048: plan for a GPU.
"""

import os
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from typing import Any

import gin
import gymnasium as gym
import torch
import torch.nn.functional as F
from common import parse_args, run_trials
from torch import Tensor, nn

from amago import Experiment, TstepEncoder
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.envs.builtin.optional import optional_import
from amago.envs.builtin.xland_minigrid import XLandMinigridVectorizedGym
from amago.nets.cnn import GridworldCNN
from amago.nets.utils import add_activation_log, symlog

BENCHMARKS = ["trivial-21k", "small-1m", "medium-1m", "medium-3m", "high-1m", "high-3m"]
NUM_IDS = 15  # of tiles, of colours, and in the encoding of a goal


@gin.configurable
class XLandMGTstepEncoder(TstepEncoder):
    """Embeds the ids of the grid, and of the goal; a CNN on the former, then two linear layers on everything.

    Args:
        obs_space: Dict of grid (H, W, 2) ids of tiles and colours, goal (5,) ids, direction_done (5,).
        rl2_space: space of previous reward and action.
        grid_id_dim: width of the embedding of a tile or a colour.
        grid_emb_dim: width of the features of the grid.
        goal_id_dim: width of the embedding of an id of the goal.
        goal_emb_dim: width of the features of the goal.
        ff_dim: width of the hidden layer.
        out_dim: width of the output.
    """

    def __init__(
        self,
        obs_space: gym.spaces.Dict,
        rl2_space: gym.spaces.Box,
        grid_id_dim: int = 8,
        grid_emb_dim: int = 128,
        goal_id_dim: int = 8,
        goal_emb_dim: int = 32,
        ff_dim: int = 256,
        out_dim: int = 128,
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        height, width, ids = obs_space["grid"].shape
        self.grid_ids = nn.Embedding(NUM_IDS, grid_id_dim)
        self.cnn = GridworldCNN(
            img_shape=(height, width, ids * grid_id_dim),
            channels_first=False,
            activation="leaky_relu",
            channels=[32, 48, 64],
        )
        self.grid = nn.Linear(self.cnn(self.cnn.blank_img).shape[-1], grid_emb_dim)
        self.goal_ids = nn.Embedding(NUM_IDS, goal_id_dim)
        self.goal = nn.Linear(obs_space["goal"].shape[0] * goal_id_dim, goal_emb_dim)
        merged_dim = grid_emb_dim + goal_emb_dim + obs_space["direction_done"].shape[0] + rl2_space.shape[0]
        self.hidden = nn.Linear(merged_dim, ff_dim)
        self.out = nn.Linear(ff_dim, out_dim)
        self.out_norm = nn.LayerNorm(out_dim)

    @property
    def emb_dim(self) -> int:
        """Width of the output."""
        return self.out.out_features

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, emb_dim)."""
        ids = self.grid_ids(obs["grid"].long()).flatten(-2)  # (B, L, H, W, 2 * grid_id_dim)
        grid = F.leaky_relu(self.grid(self.cnn(ids, from_float=True)))
        goal = F.leaky_relu(self.goal(self.goal_ids(obs["goal"].long()).flatten(-2)))
        add_activation_log("grid", grid, log_dict)
        add_activation_log("goal", goal, log_dict)
        merged = torch.cat((grid, goal, obs["direction_done"].float(), symlog(rl2s)), dim=-1)
        return self.out_norm(self.out(F.leaky_relu(self.hidden(merged))))


def ten_tasks() -> Any:
    """A benchmark of ten tasks without rules, to come near a ball or a square, for `--smoke`: no download."""
    import jax.numpy as jnp
    from xminigrid.benchmarks import Benchmark
    from xminigrid.core.constants import TILES_REGISTRY, Colors, Tiles
    from xminigrid.core.goals import AgentNearGoal
    from xminigrid.core.rules import EmptyRule

    colors = (Colors.RED, Colors.GREEN, Colors.BLUE, Colors.YELLOW, Colors.PURPLE)
    tiles = [TILES_REGISTRY[tile, color] for tile in (Tiles.BALL, Tiles.SQUARE) for color in colors]
    return Benchmark(
        goals=jnp.stack([AgentNearGoal(tile=tile).encode() for tile in tiles]),
        rules=jnp.stack([EmptyRule().encode()[None] for _ in tiles]),
        init_tiles=jnp.stack([tile[None] for tile in tiles]),
        num_rules=jnp.zeros(len(tiles), int),
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--benchmark", choices=BENCHMARKS, default="small-1m")
    parser.add_argument("--k_shots", type=int, default=15, help="attempts at the same task")
    parser.add_argument("--rooms", type=int, default=1)
    parser.add_argument("--grid_size", type=int, default=9)
    parser.add_argument("--max_seq_len", type=int, default=2048, help="context length in timesteps")
    parser.set_defaults(env_mode="already_vectorized")
    args = parse_args(parser, argv, smoke="--k_shots 1 --max_seq_len 32 --timesteps_per_epoch 250")
    args.env_mode = "already_vectorized"
    # Otherwise jax takes most of the GPU's memory for itself when it starts.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    xminigrid = optional_import("xminigrid", extra="xland")
    benchmark = ten_tasks() if args.smoke else xminigrid.load_benchmark(args.benchmark)

    def make_tasks(split: str) -> XLandMinigridVectorizedGym:
        return XLandMinigridVectorizedGym(
            parallel_envs=args.parallel_actors,
            k_episodes=args.k_shots,
            rooms=args.rooms,
            grid_size=args.grid_size,
            ruleset_benchmark=benchmark,
            train_test_split=split,
        )

    def make_env(split: str) -> AMAGOEnv:
        name = f"XLandMiniGrid-{args.benchmark}-R{args.rooms}-{args.grid_size}x{args.grid_size}"
        return AMAGOEnv(make_tasks(split), env_name=name, batched_envs=args.parallel_actors)

    make_train_env, make_test_env = partial(make_env, "train"), partial(make_env, "test")
    rollout_steps = make_tasks("train").suggested_max_seq_len

    config: dict[str, Any] = {
        "NCriticsTwoHot.min_return": -100.0 * args.k_shots,
        "NCriticsTwoHot.max_return": 100.0 * args.k_shots,
        "NCriticsTwoHot.output_bins": 32,
    }
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=10.0)
    exploration = switch_exploration(config, "egreedy", steps_anneal=1_000_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_xland_{args.benchmark}_k{args.k_shots}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_train_env,
            make_val_env=make_test_env,
            max_seq_len=min(args.max_seq_len, rollout_steps),
            traj_save_len=rollout_steps,
            stagger_traj_file_lengths=False,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=XLandMGTstepEncoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=rollout_steps,
            # No rollout ends before.
            start_learning_at_epoch=max(
                args.start_learning_at_epoch, rollout_steps // args.timesteps_per_epoch
            ),
            save_trajs_as="npz-compressed",
            grad_clip=2.0,
        )

    return run_trials(
        args, group_name, make_experiment, make_test_env, test_timesteps=20_000, smoke_steps=rollout_steps
    )


if __name__ == "__main__":
    main()
