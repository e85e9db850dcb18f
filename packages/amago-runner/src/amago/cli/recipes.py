"""The settings that a run starts from: one typed object, with the quickstart's numbers in one place.

`QUICKSTART` is what `amago-run train` without an environment does; `recipe_for` gives every other environment
the defaults. Options replace single fields (`Recipe.updated`); the finished recipe is stored with the run, so
that `eval` and `--resume` need no options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything about a training run that the command line decides.

    Steps are environment steps of one actor unless a field says otherwise; sequence lengths are in steps.

    Attributes:
        env: a builtin environment's name or a gymnasium id.
        env_args: keyword arguments of the environment.
        agent, traj_encoder, exploration: registered names.
        tstep_encoder: likewise; None takes the one that suits the environment's observations.
        memory_size, memory_layers: width and depth of the trajectory encoder.
        max_seq_len: longest sequence that the agent trains on and remembers; None takes it from the
            environment's time limit.
        actors: environments that step side by side.
        env_mode: "sync", "async" or "already_vectorized".
        epochs: rounds of collecting and learning.
        timesteps_per_epoch: steps that every actor collects in an epoch.
        batches_per_epoch: gradient steps in an epoch.
        batch_size: sequences in a batch.
        dset_max_size: trajectory files that the replay buffer keeps.
        loader_workers: processes that read batches; 0 reads them in the main process.
        learning_rate, lr_warmup_steps, grad_clip, l2_coeff: of the optimizer; the warm-up is in updates.
        exploration_share: part of each actor's steps in which exploration falls to its final value, in (0, 1].
        mixed_precision: "no" or "bf16".
        val_interval: epochs between evaluations during training; the last epoch is evaluated by the summary.
        val_rounds: episodes that every actor can finish, at least, in an evaluation during training.
        ckpt_interval: epochs between checkpoints.
        eval_episodes: fresh episodes behind the final figures.
        seed: fixes every random number of the run.
        gin: further gin settings, selector.parameter to value, that options, files and `--set` override.
    """

    env: str
    env_args: Mapping[str, Any] = field(default_factory=dict)
    agent: str = "agent"
    tstep_encoder: str | None = None
    traj_encoder: str = "transformer"
    exploration: str = "egreedy"
    memory_size: int = 128
    memory_layers: int = 2
    max_seq_len: int | None = None
    actors: int = 8
    env_mode: str = "sync"
    epochs: int = 100
    timesteps_per_epoch: int = 200
    batches_per_epoch: int = 100
    batch_size: int = 24
    dset_max_size: int = 20_000
    loader_workers: int = 0
    learning_rate: float = 1e-4
    lr_warmup_steps: int = 500
    grad_clip: float = 1.0
    l2_coeff: float = 1e-3
    exploration_share: float = 0.8
    mixed_precision: str = "no"
    val_interval: int = 10
    val_rounds: int = 2
    ckpt_interval: int = 50
    eval_episodes: int = 100
    seed: int = 0
    gin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.exploration_share <= 1:
            raise ValueError(f"exploration_share must lie in (0, 1], got {self.exploration_share}")

    def updated(self, **given: Any) -> Recipe:
        """This recipe with the fields that are given and not None replaced."""
        return dataclasses.replace(
            self, **{name: value for name, value in given.items() if value is not None}
        )

    @property
    def steps_per_actor(self) -> int:
        """Environment steps that one actor takes during training."""
        return self.epochs * self.timesteps_per_epoch

    @property
    def env_steps(self) -> int:
        """Environment steps of all actors together."""
        return self.steps_per_actor * self.actors

    @property
    def gradient_steps(self) -> int:
        """Updates, if every epoch learns."""
        return self.epochs * self.batches_per_epoch

    @property
    def anneal_steps(self) -> int:
        """Steps of one actor over which its exploration falls to the final value."""
        return max(1, round(self.exploration_share * self.steps_per_actor))

    def as_json(self) -> dict[str, Any]:
        """Every field, of types that JSON knows."""
        return dataclasses.asdict(self)


QUICKSTART = Recipe(
    env="MetaFrozenLake",
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
QUICKSTART_NAME = "quickstart"


def recipe_for(env: str | None) -> Recipe:
    """The recipe of an environment; None, and the quickstart's own environment, have the quickstart's."""
    if env is None or env == QUICKSTART.env:
        return QUICKSTART
    return Recipe(env=env)
