"""The recipe: every setting of a training run, with its type, default value and help text.

The options of `amago-run train` and their help are generated from these fields (`options.py`), and run.json
records the recipe, so `eval` and `--resume` need no options. `RECIPES` holds the default settings for each kind of
environment, `QUICKSTART` those of the quickstart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer
from typer.models import OptionInfo

from amago.envs.builtin.catalog import Kind

ENVIRONMENT = "Environment"
AGENT = "Agent"
COLLECTING = "Collecting"
LEARNING = "Learning"
RUN = "Run"
GIN = "All other settings, through gin"


def _option(panel: str, help: str, metavar: str | None = "NAME", **more: Any) -> OptionInfo:
    option: OptionInfo = typer.Option(help=help, metavar=metavar, rich_help_panel=panel, **more)
    return option


def _number(panel: str, help: str, min: int = 1, **more: Any) -> OptionInfo:
    return _option(panel, help, metavar="N", min=min, **more)


# The recipes that suit any environment but a dataset.
RecipeName = Literal["vectors", "continuous", "memory", "pixels", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a training run. A field with help text is an option of `amago-run train`.

    A setting of None is chosen to suit the environment.

    Attributes:
        env: a builtin environment's name, an id of its package, or a Gymnasium id.
        kind: the name in `RECIPES` whose settings were asked for; None took those of the environment.
        context: the largest default context length in timesteps.
        val_rounds: episodes that every actor can finish, at least, in an evaluation during training.
        val_steps: the most steps of an actor in an evaluation during training.
        sample_actions_val: sample actions in evaluations, instead of taking the most likely ones.
        sample_by: "files" or "timesteps": what has the same chance to be drawn from the replay buffer.
        padded_sampling: ends of a trajectory that training sequences may extend past: "none", "both", "left" or
            "right".
        traj_save_len: longest trajectory file in timesteps, so that learning need not wait for the end of long
            episodes; None writes whole episodes.
        lr_warmup_steps: linear warm-up of the learning rate, in updates.
        lr_end: learning rate at the end of the run, as a share of the highest; it falls linearly.
        grad_clip: maximum norm of the gradient.
        l2_coeff: weight decay of AdamW.
        exploration_share: fraction of the run over which exploration is annealed, in (0, 1].
        gin: further gin settings, "Selector.parameter" to value; options, --gin and --set override them. Settings
            of "Agent" are those of the agent that is chosen.
    """

    env: str
    kind: Annotated[
        RecipeName | None,
        _option(
            ENVIRONMENT,
            "Default settings: vectors, continuous, memory, pixels or tokens.",
            "KIND",
            show_default="those of ENV",
        ),
    ] = None
    env_args: Annotated[
        Mapping[str, Any],
        _option(ENVIRONMENT, "Keyword argument of the environment; repeatable.", "KEY=VALUE"),
    ] = field(default_factory=dict)
    actors: Annotated[int, _number(ENVIRONMENT, "Number of parallel environments.")] = 8
    env_mode: Annotated[
        Literal["sync", "async", "already_vectorized"],
        _option(
            ENVIRONMENT,
            "sync: in the main process; async: in worker processes; already_vectorized: one environment that "
            "steps a batch itself, such as gymnax's.",
            "MODE",
        ),
    ] = "sync"

    agent: Annotated[str, _option(AGENT, "Learning algorithm: agent, multitask.")] = "agent"
    tstep_encoder: Annotated[
        str | None,
        _option(AGENT, "Timestep encoder: ff, cnn, multimodal.", show_default="by the observation space"),
    ] = None
    traj_encoder: Annotated[
        str,
        _option(AGENT, "Trajectory encoder (sequence model): transformer, mamba, rnn or gru, ff, identity."),
    ] = "transformer"
    memory_size: Annotated[int, _number(AGENT, "Width of the trajectory encoder.")] = 128
    memory_layers: Annotated[int, _number(AGENT, "Number of layers of the trajectory encoder.")] = 2
    max_seq_len: Annotated[
        int | None,
        _number(
            AGENT,
            "Context length in timesteps.",
            show_default="the time limit, at most the context of the kind",
        ),
    ] = None

    exploration: Annotated[str, _option(COLLECTING, "Exploration noise: egreedy, bilevel.")] = "egreedy"
    timesteps_per_epoch: Annotated[int, _number(COLLECTING, "Steps per actor and epoch.", min=0)] = 200
    buffer_size: Annotated[int, _number(COLLECTING, "Trajectories kept in the replay buffer.")] = 20_000

    epochs: Annotated[int, _number(LEARNING, "Number of epochs; each collects, then trains.")] = 100
    batches_per_epoch: Annotated[int, _number(LEARNING, "Updates per epoch.", min=0)] = 100
    batch_size: Annotated[int, _number(LEARNING, "Sequences per batch.")] = 24
    learning_rate: Annotated[
        float, _option(LEARNING, "Learning rate of AdamW after the warm-up.", "RATE", min=0.0)
    ] = 1e-4
    mixed_precision: Annotated[
        Literal["no", "bf16"], _option(LEARNING, "Mixed precision: no, or bf16.", metavar=None)
    ] = "no"
    loader_workers: Annotated[
        int, _number(LEARNING, "Data loader worker processes; 0 loads in the main process.", min=0)
    ] = 0
    threads: Annotated[
        int | None,
        _number(
            LEARNING, "Number of torch threads on a CPU.", show_default="1 for small layers, else torch's"
        ),
    ] = None
    lr_warmup_steps: int = 500
    lr_end: float = 1.0
    grad_clip: float = 1.0
    l2_coeff: float = 1e-3
    exploration_share: float = 0.8
    context: int = 128
    sample_by: Literal["files", "timesteps"] = "files"
    padded_sampling: Literal["none", "both", "left", "right"] = "none"
    traj_save_len: int | None = None

    seed: Annotated[int, _number(RUN, "Random seed.", min=0)] = 0
    val_interval: Annotated[int, _number(RUN, "Epochs between evaluations.")] = 10
    val_rounds: int = 2
    val_steps: int = 2000
    sample_actions_val: bool = True
    ckpt_interval: Annotated[int, _number(RUN, "Epochs between checkpoints.")] = 50
    eval_episodes: Annotated[int, _number(RUN, "Episodes of the evaluation after training.")] = 100
    gin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("exploration_share", "lr_end"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], got {getattr(self, name)}")

    def updated(self, **changes: Any) -> Recipe:
        """A copy with some fields replaced; environment arguments are added to those of this recipe."""
        if "env_args" in changes:
            changes["env_args"] = {**self.env_args, **changes["env_args"]}
        return dataclasses.replace(self, **changes)

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors together."""
        return self.epochs * self.timesteps_per_epoch * self.actors

    @property
    def anneal_steps(self) -> int:
        """Steps of one actor over which exploration is annealed."""
        return max(1, round(self.exploration_share * self.epochs * self.timesteps_per_epoch))


# Settings that decide the shapes of weights, the environment or the random streams: a resumed run keeps them.
FIXED_WHEN_RESUMED = (
    "env",
    "kind",
    "env_args",
    "agent",
    "tstep_encoder",
    "traj_encoder",
    "exploration",
    "memory_size",
    "memory_layers",
    "max_seq_len",
    "actors",
    "seed",
)

# Default settings by kind of environment, where they differ from those of the dataclass; for two CPU cores.
# "continuous" is for environments of the kind "vectors" with Box actions.
RECIPES: dict[Kind | Literal["continuous"], dict[str, Any]] = {
    # Networks without memory. A large tau and 5-step returns let values that sum many rewards grow in few updates.
    "vectors": {
        "traj_encoder": "ff",
        "memory_size": 64,
        "memory_layers": 1,
        "actors": 16,
        "epochs": 50,
        "timesteps_per_epoch": 100,
        "batches_per_epoch": 50,
        "batch_size": 32,
        "learning_rate": 5e-4,
        "lr_warmup_steps": 100,
        # At a constant rate one policy in five is much worse than those before and after it.
        "lr_end": 0.05,
        "context": 32,
        # Sampling files uniformly would mostly show the short episodes of bad policies.
        "sample_by": "timesteps",
        # Otherwise the last step of an episode, such as a fall, is rare in the batches.
        "padded_sampling": "both",
        "traj_save_len": 100,
        "sample_actions_val": False,
        "gin": {
            "FFTstepEncoder.d_hidden": 128,
            "FFTstepEncoder.d_output": 64,
            "Actor.d_hidden": 128,
            "NCritics.d_hidden": 128,
            "Agent.gamma": 0.99,
            "Agent.use_multigamma": False,
            "Agent.reward_multiplier": 1.0,
            "Agent.tau": 0.1,
            "Agent.n_step": 5,
        },
    },
    "continuous": {
        "traj_encoder": "ff",
        "memory_size": 64,
        "memory_layers": 1,
        "actors": 8,
        "epochs": 60,
        "timesteps_per_epoch": 50,
        "batches_per_epoch": 50,
        "batch_size": 16,
        "learning_rate": 5e-4,
        "lr_warmup_steps": 100,
        "context": 25,
        # Episodes are written in segments, so learning need not wait for their end.
        "traj_save_len": 50,
        "sample_actions_val": False,
        "gin": {
            "FFTstepEncoder.n_layers": 1,
            "FFTstepEncoder.d_hidden": 64,
            "FFTstepEncoder.d_output": 64,
            "Actor.d_hidden": 64,
            "NCritics.d_hidden": 64,
            "Agent.gamma": 0.95,
            "Agent.reward_multiplier": 1.0,
            "Agent.tau": 0.01,
            "EpsilonGreedy.eps_end": 0.01,
        },
    },
    # A small Transformer over the whole episode.
    "memory": {
        "memory_size": 64,
        "actors": 16,
        "epochs": 60,
        "timesteps_per_epoch": 100,
        "batches_per_epoch": 60,
        "learning_rate": 5e-4,
        "context": 512,
        "gin": {
            # Returns are of the order of 1, and PopArt begins with a scale of 10.
            "Agent.reward_multiplier": 100.0,
            "Agent.tau": 0.01,
            "FFTstepEncoder.d_hidden": 128,
            "FFTstepEncoder.d_output": 64,
            "TformerTrajEncoder.n_heads": 4,
            "TformerTrajEncoder.dropout_ff": 0.0,
            "TformerTrajEncoder.dropout_emb": 0.0,
            "Actor.d_hidden": 128,
            "NCritics.d_hidden": 128,
        },
    },
    # Few frames per update, because a convolutional network on a CPU takes milliseconds for each. Cloning
    # random actions (offline_coeff) would hold the policy close to a uniform one for long.
    "pixels": {
        "traj_encoder": "rnn",
        "memory_size": 128,
        "memory_layers": 1,
        "epochs": 70,
        "timesteps_per_epoch": 400,
        "batches_per_epoch": 100,
        "batch_size": 16,
        "learning_rate": 5e-4,
        "eval_episodes": 16,
        "threads": 1,
        "exploration_share": 0.15,
        "context": 16,
        "sample_by": "timesteps",
        "padded_sampling": "both",
        "traj_save_len": 200,
        "gin": {
            "CNNTstepEncoder.img_features": 128,
            "CNNTstepEncoder.d_output": 128,
            "Actor.d_hidden": 128,
            "NCritics.d_hidden": 128,
            "Agent.gamma": 0.93,
            "Agent.use_multigamma": False,
            "Agent.tau": 0.05,
            "Agent.n_step": 5,
            "Agent.offline_coeff": 0.0,
        },
    },
    # Small networks for small grids; a Transformer remembers what was out of sight.
    "tokens": {
        "memory_size": 64,
        "memory_layers": 1,
        "actors": 16,
        "epochs": 60,
        "timesteps_per_epoch": 100,
        "batches_per_epoch": 50,
        "batch_size": 16,
        "learning_rate": 5e-4,
        "context": 64,
        "gin": {
            "Agent.reward_multiplier": 100.0,
            "MultiModalTstepEncoder.d_hidden": 128,
            "MultiModalTstepEncoder.d_output": 64,
            "ImageFeatures.d_output": 64,
            "TformerTrajEncoder.n_heads": 4,
            "TformerTrajEncoder.dropout_ff": 0.0,
            "TformerTrajEncoder.dropout_emb": 0.0,
            "Actor.d_hidden": 128,
            "NCritics.d_hidden": 128,
        },
    },
    # Behaviour cloning of the actions that the critics prefer; nothing is collected.
    "offline": {
        "traj_encoder": "ff",
        "memory_size": 64,
        "memory_layers": 1,
        "timesteps_per_epoch": 0,
        "context": 32,
        "sample_by": "timesteps",
        "padded_sampling": "right",
        "sample_actions_val": False,
        "gin": {
            "FFTstepEncoder.d_hidden": 128,
            "FFTstepEncoder.d_output": 64,
            "Actor.d_hidden": 128,
            "NCritics.d_hidden": 128,
            "Agent.online_coeff": 0.0,
            "Agent.offline_coeff": 1.0,
            # The filter needs critics that are right within some thousand updates.
            "Agent.gamma": 0.99,
            "Agent.tau": 0.01,
            "Agent.reward_multiplier": 1.0,
        },
    },
}

QUICKSTART_NAME = "quickstart"
QUICKSTART = Recipe(
    env="MetaFrozenLake",
    context=512,
    env_args={"size": 3, "k_episodes": 5},
    memory_size=64,
    memory_layers=2,
    actors=16,
    epochs=40,
    timesteps_per_epoch=100,
    batches_per_epoch=75,
    batch_size=24,
    learning_rate=7e-4,
    exploration_share=0.8,
    val_interval=4,
    val_rounds=4,
    ckpt_interval=20,
    eval_episodes=1000,
    # A lake of nine cells needs no wide networks, and at this size dropout only costs time.
    gin={
        "FFTstepEncoder.d_hidden": 128,
        "FFTstepEncoder.d_output": 64,
        "TformerTrajEncoder.n_heads": 4,
        "TformerTrajEncoder.dropout_ff": 0.0,
        "TformerTrajEncoder.dropout_emb": 0.0,
        "Actor.d_hidden": 64,
        "NCritics.d_hidden": 64,
    },
)


def recipe_for(
    env: str, kind: Kind, action_kind: str = "discrete", wanted: RecipeName | None = None
) -> Recipe:
    """The default recipe of an environment.

    Args:
        env: the environment's name; that of the quickstart has the quickstart's recipe.
        kind: the kind of environment.
        action_kind: "box", or that of discrete actions.
        wanted: the recipe to take instead of that of the environment.
    """
    if wanted is not None:
        return Recipe(env=env, kind=wanted, **RECIPES[wanted])
    if env == QUICKSTART.env:
        return QUICKSTART
    continuous = kind == "vectors" and action_kind == "box"
    return Recipe(env=env, **RECIPES["continuous" if continuous else kind])
