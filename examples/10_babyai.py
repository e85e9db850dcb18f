"""Following instructions in grid worlds: k attempts at each of dozens of BabyAI tasks.

Introduced by Chevalier-Boisvert et al. 2019. Needs minigrid: pip install 'amago-envs[babyai]'. The policy
reads a mission of up to nine words; layout and mission stay the same for --k_episodes attempts. It trains
on 50 tasks, and is evaluated on 68, those 50 among them, with other seeds. An attempt gives at most 1, so
a return is below k. The script also shows an encoder of your own for observations of several kinds.

    python examples/10_babyai.py --agent_type multitask --run_name babyai --buffer_dir runs --no_log

The full setting collects 12 million timesteps and takes a million updates: plan for a GPU.
"""

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
from amago.envs.builtin import babyai
from amago.nets.cnn import GridworldCNN, NatureishCNN
from amago.nets.goal_embedders import TokenGoalEmb
from amago.nets.utils import add_activation_log, symlog

LOCAL_SIZES = ["S5N2", "S6N2", "S6N3", "S6N4", "S7N4", "S8N2", "S8N3", "S8N7"]
# Tasks that only the evaluation has.
HELD_OUT = [f"BabyAI-GoToLocal{size}-v0" for size in LOCAL_SIZES]
HELD_OUT += [
    "BabyAI-GoToRedBallGrey-v0",
    "BabyAI-GoToObj-v0",
    "BabyAI-GoToObjS4-v0",
    "BabyAI-GoToObjMazeS7-v0",
]
HELD_OUT += ["BabyAI-OpenDoorLoc-v0", "BabyAI-UnlockLocalDist-v0", "BabyAI-UnlockPickupDist-v0"]
HELD_OUT += ["BabyAI-ActionObjDoor-v0", "BabyAI-FindObjS5-v0", "BabyAI-KeyCorridorS6R3-v0"]
LAST_SEED = 1_000_000
LARGEST_ID = 10.0  # of objects; colours and states have smaller ones


@gin.configurable
class BabyTstepEncoder(TstepEncoder):
    """Image, mission, and the rest of the observation, each by a network of its own; then a linear layer.

    Args:
        obs_space: Dict of image (H, W, 3), mission (9,) tokens, extra (5,).
        rl2_space: space of previous reward and action.
        obs_kind: observation type of the environment: "full-image" and the like are pixels, "full-grid" and the
            like are ids of objects, colours and states.
        extras_dim: width of the features of `extra` and rl2s.
        mission_dim: width of the features of the mission.
        emb_dim: width of the output.
    """

    def __init__(
        self,
        obs_space: gym.spaces.Dict,
        rl2_space: gym.spaces.Box,
        obs_kind: str = "partial-grid",
        extras_dim: int = 16,
        mission_dim: int = 48,
        emb_dim: int = 300,
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        self.is_grid = obs_kind.endswith("grid")
        cnn_type = GridworldCNN if self.is_grid else NatureishCNN
        self.cnn = cnn_type(img_shape=obs_space["image"].shape, channels_first=False, activation="leaky_relu")
        mission = obs_space["mission"]
        self.mission = TokenGoalEmb(
            goal_length=mission.shape[0],
            goal_dim=1,
            min_token=int(mission.low.min()),
            max_token=int(mission.high.max()),
            goal_emb_dim=mission_dim,
            embedding_dim=18,
            hidden_size=96,
        )
        extras = obs_space["extra"].shape[0] + rl2_space.shape[0]
        self.extras = nn.Sequential(
            nn.Linear(extras, 32), nn.LeakyReLU(), nn.Linear(32, extras_dim), nn.LeakyReLU()
        )
        image_dim = self.cnn(self.cnn.blank_img).shape[-1]
        self.merge = nn.Linear(image_dim + mission_dim + extras_dim, emb_dim)
        self.out_norm = nn.LayerNorm(emb_dim)

    @property
    def emb_dim(self) -> int:
        """Width of the output."""
        return self.merge.out_features

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Observations (B, L, ...) and rl2s (B, L, 1 + A) to (B, L, emb_dim)."""
        image = obs["image"].float() / LARGEST_ID if self.is_grid else obs["image"]
        image = self.cnn(image, from_float=self.is_grid)
        mission = self.mission(obs["mission"].unsqueeze(-1))
        extras = self.extras(torch.cat((symlog(rl2s), obs["extra"]), dim=-1))
        add_activation_log("image", image, log_dict)
        add_activation_log("mission", mission, log_dict)
        add_activation_log("extras", extras, log_dict)
        return self.out_norm(self.merge(torch.cat((F.leaky_relu(image), mission, extras), dim=-1)))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument(
        "--obs_kind",
        choices=["partial-grid", "full-grid", "partial-image", "full-image"],
        default="partial-grid",
    )
    parser.add_argument("--k_episodes", type=int, default=2, help="attempts at the same level")
    parser.add_argument("--train_seeds", type=int, default=5000, help="last seed of training")
    parser.add_argument("--max_seq_len", type=int, default=512, help="context length in timesteps")
    args = parse_args(parser, argv, smoke="--k_episodes 1 --max_seq_len 8")

    def make_env(task_names: Sequence[str], seed_range: tuple[int, int]) -> AMAGOEnv:
        tasks = babyai.MultitaskMetaBabyAI(
            task_names=task_names,
            k_episodes=args.k_episodes,
            seed_range=seed_range,
            observation_type=args.obs_kind,
        )
        return AMAGOEnv(tasks)  # named after the task that is being played, such as GoToLocal-v0

    all_tasks = babyai.ALL_BABYAI_TASKS
    train_tasks = [task for task in all_tasks if task not in HELD_OUT]
    make_train_env = partial(make_env, train_tasks, (0, args.train_seeds))
    make_test_env = partial(make_env, all_tasks, (args.train_seeds + 1, LAST_SEED))

    config: dict[str, Any] = {
        "NCriticsTwoHot.min_return": None,
        "NCriticsTwoHot.max_return": None,
        "NCriticsTwoHot.output_bins": 32,
        "BabyTstepEncoder.obs_kind": args.obs_kind,
    }
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(config, args.agent_type, reward_multiplier=1000.0)
    exploration = switch_exploration(config, "egreedy", steps_anneal=500_000)
    use_config(config, args.configs)

    group_name = f"{args.run_name}_babyai_{args.obs_kind}_k{args.k_episodes}"

    def make_experiment(run_name: str) -> Experiment:
        return create_experiment_from_cli(
            args,
            make_train_env=make_train_env,
            make_val_env=make_test_env,
            max_seq_len=args.max_seq_len,
            traj_save_len=3 * args.max_seq_len,
            stagger_traj_file_lengths=True,
            group_name=group_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=BabyTstepEncoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=6000,
            save_trajs_as="npz",
        )

    return run_trials(
        args, group_name, make_experiment, make_test_env, test_timesteps=20_000, smoke_steps=500
    )


if __name__ == "__main__":
    main()
