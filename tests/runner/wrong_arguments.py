"""300 wrong arguments of public constructors, chosen by their documentation, and how each is answered.

`python -m tests.runner.wrong_arguments` prints those that no error names at construction. A wrong argument counts
as named if the constructor raises TypeError or ValueError with the argument's name in the message.
"""

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from amago.agent import Agent, Multigammas, MultiTaskAgent
from amago.envs import AMAGOEnv, SequenceWrapper
from amago.envs.builtin.kshot import KShot
from amago.envs.builtin.mazerunner import MazeRunnerAMAGOEnv, MazeRunnerGymEnv
from amago.envs.builtin.tmaze import TMazeAltActive, TMazeAltPassive
from amago.envs.builtin.toy_gym import MetaFrozenLake, RoomKeyDoor
from amago.envs.exploration import BilevelEpsilonGreedy, EpsilonGreedy
from amago.experiment import Experiment
from amago.loading import DiskTrajDataset, DoNothingDataset, MixtureOfDatasets, RLData
from amago.nets import actor_critic, cnn, ff, goal_embedders, policy_dists, transformer, utils
from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    IdentityTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
)
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder
from amago.utils import AdamWRel

NAN, INF = float("nan"), float("inf")
HUGE = 10**12


class Wrong(NamedTuple):
    """One call with one wrong argument."""

    cls: Callable[..., Any]
    right: dict[str, Any]
    argument: str
    value: Any

    @property
    def label(self) -> str:
        return f"{self.cls.__name__}({self.argument}={self.value!r})"


def answer(case: Wrong) -> str:
    """ "" if the wrong argument is named at construction; else what happened instead."""
    try:
        case.cls(**{**case.right, case.argument: case.value})
    except (TypeError, ValueError) as error:
        named = re.search(rf"\b{case.argument}\b", str(error)) is not None
        return "" if named else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def cases(folder: Path) -> Iterator[Wrong]:
    """All wrong arguments; datasets are made in `folder`."""
    for cls, right, wrong in _table(folder):
        for argument, values in wrong.items():
            for value in values:
                yield Wrong(cls, right, argument, value)


def _make_env() -> AMAGOEnv:
    return AMAGOEnv(MetaFrozenLake(3), env_name="lake")


def _table(folder: Path) -> Iterator[tuple[Callable[..., Any], dict[str, Any], dict[str, list[Any]]]]:
    spaces = {"obs_space": {"observation": (4,)}, "rl2_space": (3,)}
    images = {"obs_space": {"observation": (64, 64, 3)}, "rl2_space": (3,)}
    yield (
        FFTstepEncoder,
        spaces,
        {
            "n_layers": [0, -1, "2", True, 1.5],
            "d_hidden": [0, NAN],
            "d_output": [-3, None],
            "norm": ["Layer", 3],
            "out_norm": ["batchnorm"],
            "activation": ["leakyrelu", None],
            "hide_rl2s": ["no", 1],
            "normalize_inputs": [None],
            "specify_obs_keys": ["observation", ["position"]],
        },
    )
    yield (
        CNNTstepEncoder,
        images,
        {
            "cnn_type": ["nature", 3],
            "channels_first": ["yes"],
            "img_features": [0, HUGE],
            "rl2_features": ["12"],
            "d_output": [torch.tensor(3)],
            "drqv2_aug": [0.5],
            "aug_pct_of_batch": [75, -0.1, NAN],
            "obs_key": ["image", 0],
        },
    )
    sequence = {"tstep_dim": 8, "max_seq_len": 16}
    yield (
        TformerTrajEncoder,
        sequence,
        {
            "tstep_dim": [0],
            "max_seq_len": [-1, "128"],
            "d_model": [0, 100],
            "n_heads": [0, 3],
            "d_ff": [False],
            "n_layers": [0, 2.0],
            "dropout_ff": [1.5, "0.1"],
            "dropout_emb": [-0.05],
            "dropout_attn": [NAN],
            "dropout_qkv": [None],
            "activation": ["Relu"],
            "norm": ["layernorm"],
            "pos_emb": ["sinus", None],
            "sigma_reparam": ["False"],
            "head_scaling": [0],
            "attention_type": ["flash", transformer.VanillaAttention(True, 0.0)],
            "causal": ["yes"],
        },
    )
    yield (
        GRUTrajEncoder,
        sequence,
        {"d_hidden": [0, "256"], "n_layers": [0, None], "d_output": [-1, NAN], "norm": ["rms"]},
    )
    yield (
        FFTrajEncoder,
        sequence,
        {
            "d_model": [0],
            "d_ff": [0, "512"],
            "n_layers": [-2],
            "dropout": [2.0, NAN],
            "layer_type": ["linear", torch.nn.Linear(2, 2)],
        },
    )
    yield (
        MambaTrajEncoder,
        sequence,
        {"d_state": [0], "d_conv": [-4], "expand": [0, 1.5], "n_layers": ["3"], "norm": [True]},
    )
    yield IdentityTrajEncoder, sequence, {"tstep_dim": [None, 0], "max_seq_len": [1.5]}
    head = {"state_dim": 8, "action_dim": 2, "discrete": True, "gammas": [0.9, 0.99]}
    yield (
        actor_critic.Actor,
        head,
        {
            "state_dim": [0, "8"],
            "action_dim": [-1],
            "discrete": ["no", None],
            "gammas": [[], "0.9", [1.5], [NAN], 0.9],
            "n_layers": [0],
            "d_hidden": [HUGE],
            "dropout_p": [-1],
            "discrete_dist_type": ["discrete", policy_dists.TanhGaussian],
        },
    )
    yield (
        actor_critic.ResidualActor,
        head,
        {
            "feature_dim": [0],
            "residual_ff_dim": [NAN],
            "residual_blocks": ["2"],
            "normalization": ["lay"],
            "activation": [0],
        },
    )
    critic = {**head, "num_critics": 2}
    yield (
        actor_critic.NCritics,
        critic,
        {"num_critics": [0, "4", True], "d_hidden": [-256], "n_layers": [0], "dropout_p": [1.01]},
    )
    yield (
        actor_critic.NCriticsTwoHot,
        critic,
        {
            "min_return": ["-100", NAN, 1e6],
            "max_return": [INF],
            "output_bins": [1, 0, "128", HUGE],
            "use_symlog": ["True"],
            "label_type": ["two-hot", None],
            "sigma": [0.0, -1, NAN],
            "init_value": ["0", 1e9],
        },
    )
    yield (
        actor_critic.PopArtLayer,
        {"gammas": 3},
        {"gammas": [0, -1, "3"], "beta": [0, 2, NAN], "init_nu": [-1.0, "100"], "enabled": ["off"]},
    )
    yield (
        policy_dists.Discrete,
        {"d_action": 4},
        {
            "d_action": [0, "4", 2.5],
            "clip_prob_low": [-0.1, NAN, "0.1"],
            "clip_prob_high": [1.5, 0.0],
        },
    )
    yield (
        policy_dists.TanhGaussian,
        {"d_action": 2},
        {
            "std_low": [0, -1, NAN],
            "std_high": ["1", 1e-5],
            "std_activation": ["tanh"],
            "clip_actions_on_log_prob": [0.99, (-1.5, 0.5), (0.5, -0.5), ("a", "b")],
        },
    )
    yield policy_dists.GMM, {"d_action": 2}, {"gmm_modes": [0, "5", NAN], "std_low": [-1e-4]}
    yield policy_dists.Beta, {"d_action": 2}, {"alpha_low": [0, None], "beta_high": [0.5, "3"]}
    yield policy_dists.Multibinary, {}, {"d_action": [0, "3", None]}
    yield (
        ff.MLP,
        {"d_inp": 3, "d_hidden": 4, "n_layers": 1, "d_output": 2},
        {
            "d_inp": [0],
            "n_layers": [0, -1],
            "d_output": ["2"],
            "dropout_p": [3],
            "normalization": [5],
            "layer_type": [3],
        },
    )
    yield ff.FFBlock, {"d_model": 4, "d_ff": 8}, {"d_model": [0], "d_ff": [None], "norm": ["x"]}
    yield ff.SimNorm, {}, {"dim": [0, "8"]}
    yield ff.Normalization, {"method": "layer", "d_model": 8}, {"method": ["lay", 3], "d_model": [0, None]}
    yield utils.InputNorm, {"dim": 3}, {"dim": [0], "beta": [0, 1.5, NAN], "init_nu": [0], "skip": ["no"]}
    goals = {"goal_length": 2, "goal_dim": 3}
    yield goal_embedders.FFGoalEmb, goals, {"goal_length": [0], "goal_emb_dim": [1], "zero_embedding": ["x"]}
    yield (
        goal_embedders.TokenGoalEmb,
        goals,
        {
            "min_token": ["a"],
            "max_token": [-200, None],
            "embedding_dim": [0],
            "hidden_size": [-1],
        },
    )
    image = {"img_shape": (64, 64, 3), "channels_first": False, "activation": "relu"}
    yield (
        cnn.NatureishCNN,
        image,
        {
            "img_shape": [(64, 64), 64, (0, 64, 3)],
            "channels": [[32, 64], [], "32", [0, 64, 64]],
            "kernels": [[8, 4, -3]],
            "strides": [[4, 2, 0], None],
        },
    )
    yield cnn.IMPALAishCNN, image, {"cnn_block_depths": [[], [15]], "post_group_norm": ["yes"]}
    yield cnn.DrQv2Aug, {"pad": 4, "channels_first": False}, {"pad": [-1, "4"], "channels_first": [None]}
    yield transformer.SigmaReparam, {"d_in": 4, "d_out": 4}, {"d_in": [0], "d_out": ["4"], "bias": ["no"]}
    yield (
        transformer.FlashAttention,
        {"causal": True, "dropout": 0.0},
        {
            "causal": [None],
            "dropout": [NAN, 2],
            "window_size": [5, (1,), (1.5, 0)],
        },
    )
    yield (
        transformer.SlidingWindowFlexAttention,
        {"causal": True, "dropout": 0.0, "window_size": 4},
        {"window_size": [-1, 2.5]},
    )
    yield transformer.FixedPosEmb, {}, {"d_model": [0, 3, "4"]}
    yield transformer.LearnablePosEmb, {"d_model": 4, "max_time_idx": 8}, {"max_time_idx": [0, "8"]}
    yield transformer.RotaryPosEmb, {"head_dim": 4}, {"head_dim": [3], "base": [0, NAN]}
    agent = {
        **spaces,
        "action_space": gym.spaces.Discrete(2),
        "max_seq_len": 8,
        "tstep_encoder_type": FFTstepEncoder,
        "traj_encoder_type": GRUTrajEncoder,
    }
    yield (
        Agent,
        agent,
        {
            "action_space": ["discrete"],
            "max_seq_len": [0, "8"],
            "tstep_encoder_type": ["ff", GRUTrajEncoder],
            "traj_encoder_type": [None],
            "num_critics": [0, 2.0],
            "num_critics_td": [5, 0],
            "online_coeff": [-1, NAN, "1"],
            "offline_coeff": [-0.1, INF],
            "critic_loss_weight": [NAN, -10],
            "gamma": [1.1, "0.99", NAN],
            "reward_multiplier": [NAN, None, 0],
            "tau": [0, 1.5],
            "fake_filter": ["False"],
            "num_actions_for_value_in_critic_loss": [0],
            "fbc_filter_func": ["binary"],
            "popart": ["no"],
            "use_target_actor": [2],
            "n_step": [0, True],
            "actor_type": ["Actor"],
            "critic_type": [None],
            "pass_obs_keys_to_actor": ["observation", ["nothing"]],
        },
    )
    yield (
        MultiTaskAgent,
        agent,
        {
            "num_actions_for_value_in_actor_loss": [-3],
            "offline_coeff": [NAN],
            "tau": [-0.003],
            "use_multigamma": ["yes"],
        },
    )
    yield Multigammas, {}, {"discrete": [[1.2], 0.9], "continuous": [["0.9"], [NAN]]}
    yield (
        AMAGOEnv,
        {"env": gym.make("CartPole-v1")},
        {
            "env": ["CartPole-v1", None],
            "env_name": [3],
            "batched_envs": [0, "2", 1.5],
        },
    )
    yield (
        SequenceWrapper,
        {"env": _make_env(), "save_trajs_to": None},
        {
            "save_trajs_to": [3],
            "save_every": [(0, 5), (9, 3), "all"],
            "save_trajs_as": ["pickle"],
        },
    )
    yield (
        EpsilonGreedy,
        {"amago_env": _make_env()},
        {
            "amago_env": [gym.make("CartPole-v1")],
            "eps_start": [-0.1, NAN, "1"],
            "eps_end": [None],
            "steps_anneal": [0, "1000", NAN],
            "randomize_eps": ["no"],
        },
    )
    yield (
        BilevelEpsilonGreedy,
        {"amago_env": _make_env(), "rollout_horizon": 10},
        {
            "rollout_horizon": [0, "10"],
            "eps_end_end": [-1],
            "steps_anneal": [-5],
        },
    )
    yield (
        MetaFrozenLake,
        {"size": 3},
        {
            "size": [1, "4"],
            "k_episodes": [0],
            "hard_mode": ["no"],
            "max_episode_steps": [0, NAN],
            "slip_chance": [1.0, NAN, "0.1"],
        },
    )
    yield (
        RoomKeyDoor,
        {},
        {
            "dark": ["no"],
            "size": [1],
            "max_episode_steps": [-5],
            "start_location": ["corner", (99, 0)],
        },
    )
    yield TMazeAltPassive, {"corridor_length": 5}, {"goal_reward": [NAN], "penalty": [1.0]}
    yield TMazeAltActive, {"corridor_length": 5}, {"corridor_length": [0, "5"], "distract_reward": [1.0]}
    maze = {"maze_dim": 11, "min_num_goals": 1, "max_num_goals": 2, "time_limit": 50}
    yield MazeRunnerGymEnv, maze, {"maze_dim": [0], "max_num_goals": [0, 10_000], "render_mode": ["x"]}
    yield (
        MazeRunnerAMAGOEnv,
        {"maze_dim": 11, "num_goals": 1, "time_limit": 9, "randomized_action_space": False},
        {"num_goals": [0], "randomized_action_space": ["no"]},
    )
    yield KShot, {"env": gym.make("CartPole-v1"), "k": 2}, {"env": ["x"], "k": [0], "sample_task": [3]}
    yield (
        DiskTrajDataset,
        {"dset_root": folder, "dset_name": "disk", "dset_max_size": 10},
        {
            "dset_root": [3, None],
            "dset_name": ["", 3],
            "dset_max_size": [0, NAN, "10"],
            "dset_min_size": [0, 1.5],
            "relabeler": ["hindsight"],
            "sample_by": ["file"],
            "cache_bytes": [-1, "1GB"],
        },
    )
    yield (
        MixtureOfDatasets,
        {"datasets": [DoNothingDataset()], "sampling_weights": [1.0]},
        {
            "datasets": [[], ["disk"]],
            "sampling_weights": [[0.5, 0.5], [-1.0], [NAN], [0.0], 1.0],
            "initial_sampling_weights": [["1"]],
            "smooth_sudden_starts": [0, NAN],
        },
    )
    steps = {
        "obs": {"observation": np.zeros((4, 2), np.float32)},
        "rews": np.zeros((3, 1), np.float32),
        "dones": np.zeros((3, 1), np.bool_),
        "actions": np.zeros((3, 2), np.float32),
        "time_idxs": np.arange(4)[:, None],
    }
    yield (
        RLData,
        steps,
        {
            "obs": [np.zeros((4, 2))],
            "rews": [np.zeros(3), [["a"], ["b"], ["c"]], np.zeros((2, 1))],
            "dones": [np.full((3, 1), "False")],
            "actions": [np.zeros((4, 2))],
            "time_idxs": [None],
        },
    )
    yield (
        AdamWRel,
        {"params": [torch.nn.Parameter(torch.zeros(1))], "reset_interval": 10},
        {
            "lr": [-1, NAN, "1e-3"],
            "reset_interval": [0],
        },
    )
    run = {
        "run_name": "run",
        "ckpt_base_dir": folder,
        "max_seq_len": 8,
        "dataset": DoNothingDataset(),
        "tstep_encoder_type": FFTstepEncoder,
        "traj_encoder_type": GRUTrajEncoder,
        "agent_type": Agent,
        "val_timesteps_per_epoch": 10,
        "make_train_env": _make_env,
        "make_val_env": _make_env,
        "parallel_actors": 2,
    }
    yield (
        Experiment,
        run,
        {
            "run_name": ["", "a/b", 3],
            "ckpt_base_dir": [3],
            "max_seq_len": [0, "8"],
            "dataset": ["buffer"],
            "agent_type": ["agent", GRUTrajEncoder],
            "val_timesteps_per_epoch": [-1, 0, "10"],
            "make_train_env": ["CartPole-v1", [_make_env]],
            "make_val_env": [_make_env()],
            "parallel_actors": [0, 1.5, True],
            "env_mode": ["asynchronous", None],
            "exploration_wrapper_type": ["egreedy"],
            "sample_actions_val": ["no"],
            "force_reset_train_envs_every": [0],
            "log_to_wandb": ["yes"],
            "wandb_project": [3],
            "traj_save_len": [4, NAN],
            "has_dset_edit_rights": ["no", 0],
            "save_trajs_as": ["pkl"],
            "padded_sampling": ["center"],
            "dloader_workers": [-1, NAN],
            "epochs": [-1, "10", 1.5],
            "train_timesteps_per_epoch": [-5, "all"],
            "train_batches_per_epoch": [0],
            "val_interval": [0, "20"],
            "ckpt_interval": [-1],
            "always_save_latest": ["False"],
            "batch_size": [0, HUGE, "24", np.array(24), NAN],
            "batches_per_update": [0],
            "learning_rate": [0, -1e-4, "1e-4", NAN, INF],
            "lr_warmup_steps": [-1],
            "grad_clip": [0, NAN],
            "l2_coeff": [-1e-3],
            "mixed_precision": ["fp16"],
            "seed": [-1, "0", 1.5],
        },
    )


def main() -> None:
    """Prints the count and the wrong arguments that are not named."""
    with tempfile.TemporaryDirectory() as folder:
        answers = {case.label: answer(case) for case in cases(Path(folder))}
    unnamed = {label: what for label, what in answers.items() if what}
    for label, what in unnamed.items():
        print(f"{label}\n    {what[:200]}")
    print(f"{len(answers) - len(unnamed)} of {len(answers)} wrong arguments are named at construction")


if __name__ == "__main__":
    main()
