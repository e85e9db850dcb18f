"""Programs as users of AMAGO 3 write them: subclasses of Experiment, what they replace, read and set.

Each class here stands for a program. A replaced method must be called where its name says, with the arguments that
its signature says, and what it returns or sets must be used.
"""

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import amago
from amago import Experiment
from amago.agent import Agent, Batch, MultiTaskAgent
from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.envs.exploration import EpsilonGreedy
from amago.envs.vector import make_vector_env
from amago.experiment.run_json import read_run
from amago.loading import DoNothingDataset
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.utils import (
    call_async_env,
    count_params,
    get_constant_schedule_with_warmup,
    get_grad_norm,
    masked_avg,
)

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
RETURN = "Average Total Return in memory"
INF = float("inf")

# What a program that only loads a policy and evaluates it passes.
PLACEHOLDER: dict[str, Any] = {
    "epochs": 0,
    "ckpt_interval": None,
    "val_interval": None,
    "start_learning_at_epoch": INF,
    "start_collecting_at_epoch": INF,
    "exploration_wrapper_type": None,
    "train_timesteps_per_epoch": 0,
}


# Replaced methods


class WatchedExperiment(Experiment):
    """Replaces every method that programs replace, and calls super."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]

    def arguments_of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


def _watch(name: str) -> Callable[..., Any]:
    def method(self: WatchedExperiment, *args: Any, **kwargs: Any) -> Any:
        self.calls.append((name, args, kwargs))
        return getattr(super(WatchedExperiment, self), name)(*args, **kwargs)

    return method


INIT_HOOKS = (
    "init_dsets",
    "init_dloaders",
    "init_envs",
    "init_model",
    "init_optimizer",
    "init_checkpoints",
    "init_logger",
)
for hook in (
    *INIT_HOOKS,
    "start",
    "learn",
    "collect_new_training_data",
    "evaluate_val",
    "train_step",
    "log",
    "x_axis_metrics",
    "policy_metrics",
    "interact",
    "save_checkpoint",
    "load_checkpoint",
):
    setattr(WatchedExperiment, hook, _watch(hook))


def test_every_replaced_method_is_called_with_the_arguments_of_its_signature(
    make_experiment: MakeExperiment,
) -> None:
    experiment: Any = make_experiment(cls=WatchedExperiment, epochs=2, val_interval=1, ckpt_interval=1)
    experiment.start()
    assert experiment.names() == ["start", *INIT_HOOKS]
    assert experiment.arguments_of("init_optimizer") == [((experiment.policy,), {})]
    for name in set(INIT_HOOKS) - {"init_optimizer"}:
        assert experiment.arguments_of(name) == [((), {})], name
    experiment.learn()
    steps = experiment.arguments_of("train_step")
    assert len(steps) == 2 * experiment.train_batches_per_epoch
    assert all(isinstance(batch, Batch) for (batch, _), _ in steps)
    assert [log_step for (_, log_step), _ in steps] == 4 * [True, False]  # log_interval is 2
    for name in ("collect_new_training_data", "evaluate_val", "save_checkpoint"):
        assert experiment.arguments_of(name) == [((), {})] * 2, name
    envs = [args[0] for args, _ in experiment.arguments_of("interact")]
    assert envs == [experiment.val_envs, experiment.train_envs] * 2
    assert len(experiment.arguments_of("policy_metrics")) == 4
    assert {args[1] for args, _ in experiment.arguments_of("log")} == {
        "val",
        "train",
        "dataset",
        "train-update",
        "time",
        "learning",
    }
    assert len(experiment.arguments_of("x_axis_metrics")) == len(experiment.arguments_of("log"))


def test_a_resumed_run_loads_through_the_replaced_load_checkpoint(make_experiment: MakeExperiment) -> None:
    first = make_experiment(epochs=1, ckpt_interval=1)
    first.start()
    first.learn()
    first.close()
    again: Any = make_experiment(cls=WatchedExperiment, epochs=2, ckpt_interval=1, resume=True)
    again.start()
    assert again.arguments_of("load_checkpoint") == [((0,), {})]
    assert (again.epoch, again.grad_update_counter) == (1, 4)


class OwnInitModel(Experiment):
    """Makes agent, optimizer and schedule by itself, through accelerate, without calling super."""

    def init_model(self) -> None:
        agent = self.agent_type(
            obs_space=self.train_envs.observation_space,
            rl2_space=self.rl2_space,
            action_space=self.train_envs.action_space,
            max_seq_len=self.max_seq_len,
            tstep_encoder_type=self.tstep_encoder_type,
            traj_encoder_type=self.traj_encoder_type,
        )
        optimizer = torch.optim.SGD(agent.trainable_params, lr=0.25)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        self.policy_aclr, self.optimizer = self.accelerator.prepare(agent.to(self.DEVICE), optimizer)
        self.lr_schedule = schedule


def test_what_a_replaced_init_model_sets_is_trained(make_experiment: MakeExperiment, metrics_of: Any) -> None:
    experiment = make_experiment(cls=OwnInitModel, epochs=1, log_interval=1, ckpt_interval=1)
    experiment.start()
    before = [parameter.clone() for parameter in experiment.policy.trainable_params]
    experiment.learn()
    rates = [line["metrics"]["Learning Rate"] for line in metrics_of(experiment, "train-update")]
    assert rates == [0.25, 0.125, 0.0625, 0.03125]
    assert not any(map(torch.equal, before, experiment.policy.trainable_params))
    experiment.close()
    resumed = make_experiment(cls=OwnInitModel, epochs=1, resume=True)
    resumed.start()
    assert resumed.lr_schedule.get_last_lr() == [0.25 / 16]


class OwnEnvs(Experiment):
    """Makes its environments by itself, without calling super."""

    def init_envs(self) -> None:
        self.train_envs = make_vector_env(
            [_make_memory_env] * self.parallel_actors,
            env_mode=self.env_mode,
            exploration_wrapper_type=self.exploration_wrapper_type,
        )
        self.val_envs = make_vector_env([_make_memory_env] * 2, env_mode="sync")


def test_environments_of_a_replaced_init_envs_are_used(make_experiment: MakeExperiment) -> None:
    experiment: Any = make_experiment(cls=OwnEnvs, epochs=1)
    experiment.start()
    assert experiment.rl2_space is experiment.train_envs.rl2_space
    own = (experiment.train_envs, experiment.val_envs)
    experiment.learn()
    assert (experiment.train_envs, experiment.val_envs) == own
    assert experiment.counters.env_steps == 60
    assert RETURN in experiment.evaluate_val()
    assert experiment.policy.obs_space is experiment.observation_space


class FrozenEncoder(Experiment):
    """Freezes the timestep encoder after init_model, and makes a new optimizer of the rest."""

    def init_model(self) -> None:
        super().init_model()
        self.policy.tstep_encoder.requires_grad_(False)
        self.optimizer = self.init_optimizer(self.policy)
        self.lr_schedule = get_constant_schedule_with_warmup(optimizer=self.optimizer, num_warmup_steps=0)


def test_parameters_frozen_in_init_model_stay(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(cls=FrozenEncoder, epochs=1)
    experiment.start()
    before = {name: x.clone() for name, x in experiment.policy.named_parameters()}
    experiment.learn()
    for name, parameter in experiment.policy.named_parameters():
        if name.startswith("tstep_encoder."):
            assert torch.equal(parameter, before[name]), name
    assert not torch.equal(experiment.policy.actor.base.in_layer.weight, before["actor.base.in_layer.weight"])


class OwnLoop(Experiment):
    """A loop, a training step, a collection and an evaluation of its own, without calling super."""

    def learn(self) -> None:
        self.collected: list[float] = []
        for epoch in range(self.epoch, self.epochs):
            self.epoch = epoch
            self.collect_new_training_data()
            self.policy.train()
            for i, batch in enumerate(self.train_dloader):
                metrics = self.train_step(batch, log_step=i % self.log_interval == 0)
                self.log(metrics, key="train-update")
            self.evaluate_val()

    def train_step(self, batch: Batch, log_step: bool) -> dict[str, Any]:
        with self.accelerator.accumulate(self.policy_aclr):
            self.optimizer.zero_grad()
            loss = self.policy_aclr(batch.to(self.DEVICE), log_step=log_step)
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.policy_aclr.parameters(), self.grad_clip)
            self.optimizer.step()
            self.policy.soft_sync_targets()
            self.grad_update_counter += 1
            self.lr_schedule.step()
        return {"Own Loss": loss}

    def collect_new_training_data(self) -> None:
        self.hidden_state, (returns, _) = self.interact(
            self.train_envs,
            self.train_timesteps_per_epoch,
            hidden_state=self.hidden_state,
            save_on_done=True,
        )
        self.collected += [score for history in returns for score in history.data["memory"]]

    def evaluate_val(self) -> dict[str, float]:
        *_, (returns, specials) = self.interact(self.val_envs, self.val_timesteps_per_epoch, sample=False)
        metrics = self.policy_metrics(returns, specials)
        self.log(metrics, key="val")
        return metrics


@pytest.mark.parametrize("dloader_workers", [0, 1])
def test_a_loop_of_its_own_trains_collects_and_evaluates(
    make_experiment: MakeExperiment, metrics_of: Any, dloader_workers: int
) -> None:
    experiment: Any = make_experiment(
        cls=OwnLoop, traj_encoder_type=GRUTrajEncoder, dloader_workers=dloader_workers, lr_warmup_steps=16
    )
    experiment.start()
    assert len(experiment.train_dloader) == 4
    before = [parameter.clone() for parameter in experiment.policy.trainable_params]
    experiment.learn()
    assert (experiment.epoch, experiment.grad_update_counter) == (1, 8)
    assert experiment.lr_schedule.get_last_lr() == [experiment.learning_rate * 8 / 16]
    assert not all(map(torch.equal, before, experiment.policy.trainable_params))
    assert len(experiment.collected) == 3 * (40 // 6)  # episodes of 6 steps went on from epoch to epoch
    assert experiment.hidden_state.shape == (2, 3, 8)
    axes = [line["axes"] for line in metrics_of(experiment, "val")]
    assert [(each["Epoch"], each["total_frames-memory"], each["gradient_steps"]) for each in axes] == [
        (0, 60, 4),
        (1, 120, 8),
    ]


# Settings from gin


@gin.configurable
class GinExperiment(Experiment):
    """Gets arguments without defaults from gin, and has one of its own."""

    def __init__(self, *args: Any, temperature: float = gin.REQUIRED, **kwargs: Any) -> None:
        self.temperature = temperature
        super().__init__(*args, **kwargs)


def test_gin_gives_a_subclass_its_required_arguments(
    small_nets: None, tmp_path: Path, make_dataset: Any
) -> None:
    (tmp_path / "program.gin").write_text(
        "GinExperiment.temperature = 0.5\n"
        "GinExperiment.agent_type = @MultiTaskAgent\n"
        "GinExperiment.tstep_encoder_type = @FFTstepEncoder\n"
        "GinExperiment.traj_encoder_type = @amago.nets.traj_encoders.GRUTrajEncoder\n"
        "GinExperiment.max_seq_len = 5\n"
        "GinExperiment.val_timesteps_per_epoch = 7\n"
        "GinExperiment.parallel_actors = 2\n"
        "Experiment.learning_rate = 0.125\n"
    )
    use_config({}, gin_configs=[str(tmp_path / "program.gin")])
    experiment: Any = GinExperiment(
        run_name="run",
        ckpt_base_dir=str(tmp_path),
        dataset=make_dataset(),
        make_train_env=_make_memory_env,
        make_val_env=_make_memory_env,
        env_mode="sync",
        verbose=False,
        dloader_workers=0,
    )
    assert (experiment.agent_type, experiment.max_seq_len, experiment.temperature) == (MultiTaskAgent, 5, 0.5)
    assert experiment.learning_rate == 0.125
    experiment.start()
    try:
        assert isinstance(experiment.policy, MultiTaskAgent)
        assert isinstance(experiment.policy.traj_encoder, GRUTrajEncoder)
        assert experiment.val_envs.num_envs == 2
    finally:
        experiment.close()
    assert read_run(experiment.run_dir).arguments["agent_type"]["import"].endswith(":MultiTaskAgent")


def _make_memory_env() -> AMAGOEnv:
    return AMAGOEnv(_Signs(), env_name="memory")


# Attributes that programs read, and functions that they call on environments


class _Signs(gym.Env[np.ndarray, int]):
    """Shows a sign and rewards repeating it; has a difficulty that a program may set."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.difficulty = 0

    def set_difficulty(self, difficulty: int, scale: int = 1) -> int:
        self.difficulty = difficulty * scale
        return self.difficulty

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.sign = 0, int(self.np_random.integers(2))
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._see(), float(action == self.sign), self.time >= 6, False, {}

    def _see(self) -> np.ndarray:
        return np.array([2 * self.sign - 1, self.time / 6, float(self.np_random.random())], np.float32)


class SixSigns(gym.Env[np.ndarray, np.ndarray]):
    """Six rows that step and reset together, as an environment that is vectorized by itself."""

    ROWS = 6

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.difficulty = 0

    set_difficulty = _Signs.set_difficulty

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros((self.ROWS, 3), np.float32), {}

    def step(
        self, action: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.time = (self.time + 1) % 4
        over = np.full(self.ROWS, self.time == 0)
        obs = np.full((self.ROWS, 3), self.time / 4, np.float32)
        return obs, np.asarray(action, np.float32).reshape(-1), over, np.zeros(self.ROWS, bool), {}


def make_six_signs() -> AMAGOEnv:
    return AMAGOEnv(SixSigns(), env_name="signs", batched_envs=SixSigns.ROWS)


@pytest.mark.parametrize(
    ("options", "results"),
    [
        ({"env_mode": "sync"}, 4),
        ({"env_mode": "async", "envs_per_worker": 2}, 4),
        ({"env_mode": "async", "envs_per_worker": 2, "double_buffer": True}, 4),
        (
            {
                "env_mode": "already_vectorized",
                "make_train_env": make_six_signs,
                "make_val_env": make_six_signs,
                "parallel_actors": 6,
            },
            1,
        ),
    ],
    ids=["sync", "async", "double_buffer", "already_vectorized"],
)
def test_methods_of_environments_are_called_after_init_envs(
    make_experiment: MakeExperiment, options: dict[str, Any], results: int
) -> None:
    class Curriculum(Experiment):
        def init_envs(self) -> None:
            super().init_envs()
            self.answers = [
                call_async_env(envs, "set_difficulty", 3, scale=2)
                for envs in (self.train_envs, self.val_envs)
            ]

    arguments = {"make_train_env": _make_memory_env, "make_val_env": _make_memory_env, "parallel_actors": 4}
    experiment: Any = make_experiment(cls=Curriculum, epochs=1, **{**arguments, **options})
    experiment.start()
    assert experiment.answers == [[6] * results] * 2
    assert call_async_env(experiment.train_envs, "difficulty") == [6] * results
    experiment.learn()
    assert experiment.counters.env_steps == 20 * experiment.parallel_actors
    assert call_async_env(experiment.val_envs, "difficulty") == [6] * results


def test_calling_environments_that_a_run_does_not_have_says_why(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(**PLACEHOLDER)
    experiment.start()
    with pytest.raises(ValueError, match=r"'set_difficulty' cannot be called.* has no train_envs"):
        call_async_env(experiment.train_envs, "set_difficulty", 1)


def test_the_device_is_known_before_start(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    accelerator = experiment.accelerator
    assert torch.device("cpu") == experiment.DEVICE
    experiment.start()
    assert experiment.accelerator is accelerator


def test_attributes_that_programs_read(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(traj_encoder_type=GRUTrajEncoder, epochs=1, batches_per_update=2)
    experiment.start()
    assert isinstance(experiment.policy, Agent)
    assert experiment.accelerator.unwrap_model(experiment.policy_aclr) is experiment.policy
    assert experiment.optimizer.param_groups[0]["weight_decay"] == experiment.l2_coeff
    assert experiment.lr_schedule.get_last_lr() == [0.0]
    assert experiment.rl2_space.shape == (3,)
    assert experiment.ckpt_dir == Path(experiment.ckpt_base_dir) / "run" / "ckpts"
    assert (experiment.epoch, experiment.grad_update_counter, experiment.hidden_state) == (0, 0, None)
    experiment.learn()
    assert (experiment.epoch, experiment.grad_update_counter) == (1, 2)
    assert experiment.hidden_state.shape == (2, 3, 8)
    assert sum(1 for _ in experiment.train_dloader) == experiment.train_batches_per_epoch == 4
    for name in (
        "run_name",
        "max_seq_len",
        "agent_type",
        "parallel_actors",
        "exploration_wrapper_type",
        "seed",
    ):
        assert hasattr(experiment, name)


# Functions put on the agent


def test_masks_put_on_the_agent_in_init_model_get_losses_in_the_shape_of_the_batch(
    make_experiment: MakeExperiment,
) -> None:
    shapes: dict[str, set[tuple[int, ...]]] = {"actor": set(), "critic": set()}

    class OnlyFirstSteps(Experiment):
        def init_model(self) -> None:
            super().init_model()
            self.policy.edit_actor_mask = self.edit_actor_mask
            self.policy.edit_critic_mask = self.edit_critic_mask

        def edit_actor_mask(self, batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
            batch_size, steps, gammas, last = actor_loss.shape
            assert (batch_size, steps, last) == (*batch.rews.shape[:2], 1)
            assert gammas == len(self.policy.gammas)
            shapes["actor"].add(tuple(pad_mask.shape[:1] + pad_mask.shape[2:]))
            return pad_mask & (batch.time_idxs[:, :-1].unsqueeze(-1) < 2)

        def edit_critic_mask(self, batch: Batch, critic_loss: Tensor, pad_mask: Tensor) -> Tensor:
            batch_size, steps, critics, gammas, last = critic_loss.shape
            assert (batch_size, steps, last) == (*batch.rews.shape[:2], 1)
            assert (critics, gammas) == (self.policy.num_critics, len(self.policy.gammas))
            shapes["critic"].add(tuple(pad_mask.shape[:1]))
            return pad_mask & (batch.time_idxs[:, :-1, :, None, None] < 2)

    experiment = make_experiment(cls=OnlyFirstSteps, epochs=1)
    experiment.start()
    experiment.learn()
    assert shapes["actor"]
    assert shapes["critic"]


# Classes, partials and functions


class AgentFactory:
    """A callable object that makes agents."""

    def __call__(self, **arguments: Any) -> Agent:
        return Agent(**arguments, gamma=0.875)


def make_own_encoder(tstep_dim: int, max_seq_len: int) -> FFTrajEncoder:
    return FFTrajEncoder(tstep_dim=tstep_dim, max_seq_len=max_seq_len, d_model=12)


@pytest.mark.parametrize(
    ("agent_type", "recorded"),
    [
        (
            functools.partial(Agent, gamma=0.875),
            {"partial": ["amago.agent.agent:Agent", [], {"dict": [["gamma", 0.875]]}]},
        ),
        (lambda **arguments: Agent(**arguments, gamma=0.875), None),
        (AgentFactory(), None),
    ],
    ids=["partial", "lambda", "object"],
)
def test_agents_encoders_and_exploration_may_be_any_callable(
    make_experiment: MakeExperiment, agent_type: Any, recorded: Any
) -> None:
    experiment = make_experiment(
        agent_type=agent_type,
        tstep_encoder_type=functools.partial(FFTstepEncoder, d_output=9),
        traj_encoder_type=make_own_encoder,
        exploration_wrapper_type=functools.partial(EpsilonGreedy, eps_start=0.25),
        epochs=1,
    )
    experiment.start()
    policy = experiment.policy
    assert float(policy.gammas[-1]) == 0.875
    assert (policy.tstep_encoder.emb_dim, policy.state_dim) == (9, 12)
    assert call_async_env(experiment.train_envs, "eps_start_start") == [0.25] * 3
    experiment.learn()
    record = read_run(experiment.run_dir)
    assert record.arguments.get("agent_type") == recorded
    assert ("arguments.agent_type" in record.unwritable) == (recorded is None)
    assert record.arguments["traj_encoder_type"]["import"].endswith(":make_own_encoder")
    partial = record.arguments["exploration_wrapper_type"]["partial"]
    assert partial[0].endswith(":EpsilonGreedy")
    assert "0.25" in (experiment.run_dir / "config.txt").read_text()


def test_gin_keeps_a_partial_and_a_reference(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    use_config(
        {"Agent.actor_type": functools.partial(amago.nets.actor_critic.Actor, d_hidden=7)}, finalize=False
    )
    (tmp_path / "critics.gin").write_text("Agent.critic_type = @NCritics\n")
    use_config({}, gin_configs=[tmp_path / "critics.gin"], finalize=False)
    experiment = make_experiment(epochs=1)
    experiment.start()
    assert experiment.policy.actor.base.in_layer.out_features == 7
    record = read_run(experiment.run_dir)
    gin.clear_config()
    record.bind_gin()
    assert gin.query_parameter("Agent.actor_type").keywords == {"d_hidden": 7}
    assert repr(gin.query_parameter("Agent.critic_type")) == "@NCritics"


# Placeholders and learners


def test_a_placeholder_loads_a_checkpoint_and_evaluates(make_experiment: MakeExperiment) -> None:
    trained = make_experiment(epochs=1, ckpt_interval=1, parallel_actors=3)
    trained.start()
    trained.learn()
    written = (trained.run_dir / "run.json").read_text()
    placeholder = make_experiment(dataset=DoNothingDataset(), **PLACEHOLDER)  # in the run's own folder
    placeholder.start()
    placeholder.load_checkpoint(epoch=0, resume_training_state=False)
    for mine, theirs in zip(placeholder.policy.parameters(), trained.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert RETURN in placeholder.evaluate_test(placeholder.make_val_env, timesteps=12)
    assert RETURN in placeholder.evaluate_val()
    placeholder.learn()
    assert (placeholder.epoch, placeholder.counters.env_steps) == (0, 0)
    assert (trained.run_dir / "run.json").read_text() == written, "a placeholder describes no run"


@pytest.mark.parametrize("make_list", [False, True])
def test_a_learner_makes_one_environment_and_evaluates_in_all(
    make_experiment: MakeExperiment, make_list: bool
) -> None:
    collector = make_experiment(epochs=1)
    collector.start()
    collector.learn()
    made: list[int] = []

    def make_env() -> AMAGOEnv:
        made.append(1)
        return collector.make_val_env()

    makers = [make_env] * 3 if make_list else make_env
    learner = make_experiment(
        run_name="learner",
        start_collecting_at_epoch=INF,
        val_interval=None,
        epochs=1,
        make_train_env=makers,
        make_val_env=makers,
    )
    learner.start()
    learner.learn()
    assert learner.counters.gradient_steps == 4
    assert len(made) == 1
    assert RETURN in learner.evaluate_val()
    assert len(made) == 4


# State of subclasses in checkpoints


class CountingHead(nn.Module):
    """Has a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def get_extra_state(self) -> dict[str, Any]:
        return {"names": self.names}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.names = state["names"]


class AgentWithState(Agent):
    """A buffer, a frozen network and a module with extra state beside those of Agent."""

    def init_extra_networks(self) -> None:
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self.base = nn.Linear(2, 2).requires_grad_(False)
        self.head = CountingHead()
        self.loads: list[bool] = []

    def forward(self, batch: Batch, log_step: bool) -> Tensor:
        self.updates += 1
        self.head.names = ["last", f"of {int(self.updates)}"]
        return super().forward(batch, log_step)

    def on_checkpoint_loaded(self, is_resume: bool = False) -> None:
        self.loads.append(is_resume)


class ExperimentWithState(Experiment):
    """Writes a file beside each checkpoint, and reads it with the checkpoint."""

    best = 0.0

    def save_checkpoint(self) -> None:
        super().save_checkpoint()
        (self.ckpt_dir / f"best_{self.epoch}.json").write_text(json.dumps(self.best))

    def load_checkpoint(self, epoch: int, resume_training_state: bool = True) -> None:
        super().load_checkpoint(epoch, resume_training_state=resume_training_state)
        self.best = json.loads((self.ckpt_dir / f"best_{epoch}.json").read_text())


def test_state_of_subclasses_is_saved_and_loaded(make_experiment: MakeExperiment) -> None:
    options: dict[str, Any] = {"cls": ExperimentWithState, "agent_type": AgentWithState, "ckpt_interval": 1}
    first: Any = make_experiment(epochs=1, **options)
    first.start()
    first.best = 2.5
    first.learn()
    first.close()
    resumed: Any = make_experiment(epochs=1, resume=True, **options)
    resumed.start()
    fresh: Any = make_experiment(**{**options, **PLACEHOLDER})
    fresh.start()
    fresh.load_checkpoint(0, resume_training_state=False)
    for experiment, loads in ((resumed, [True]), (fresh, [False])):
        assert (experiment.best, experiment.policy.loads) == (2.5, loads)
        assert experiment.policy.updates == 4
        assert experiment.policy.head.names == ["last", "of 4"]
        assert torch.equal(experiment.policy.base.weight, first.policy.base.weight)


# Fast paths


class OwnActions(Agent):
    """Overrides get_actions, as an agent that masks or tempers its actions does."""

    def get_actions(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        return super().get_actions(*args, **kwargs)


def _actions(experiment: Experiment) -> list[np.ndarray]:
    folder = experiment.dataset.save_new_trajs_to
    return [
        np.load(path)["actions"]
        for path in sorted(folder.iterdir(), key=lambda path: path.name.split("_")[1])
    ]


def test_an_agent_with_its_own_get_actions_acts_equally_and_is_told_once(
    make_experiment: MakeExperiment,
) -> None:
    collected = {}
    for agent_type in (Agent, OwnActions):
        experiment = make_experiment(
            folder=agent_type.__name__,
            agent_type=agent_type,
            traj_encoder_type=GRUTrajEncoder,
            sample_actions_train=False,
            exploration_wrapper_type=None,
            start_learning_at_epoch=INF,
            val_interval=1,
            epochs=3,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            experiment.start()
            experiment.learn()
            experiment.evaluate_test(experiment.make_val_env, episodes=3)
        told = [str(each.message) for each in caught if "acts with its torch modules" in str(each.message)]
        if agent_type is Agent:
            assert told == []
        else:
            assert len(told) == 1
            assert "OwnActions overrides get_actions" in told[0]
        collected[agent_type] = _actions(experiment)
    assert len(collected[Agent]) > 3
    for compiled, by_modules in zip(collected[Agent], collected[OwnActions], strict=True):
        np.testing.assert_array_equal(compiled, by_modules)


# Misuse of env_mode


def not_a_vector_env() -> AMAGOEnv:
    return AMAGOEnv(_Signs(), env_name="signs")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "env_mode": "already_vectorized",
                "make_train_env": make_six_signs,
                "make_val_env": make_six_signs,
            },
            "parallel_actors is 3, but .* 6 rows: set parallel_actors=6",
        ),
        (
            {"env_mode": "already_vectorized"},
            "env_mode='already_vectorized' is for .* steps a single row: use env_mode='sync' or 'async'",
        ),
        (
            {"make_train_env": make_six_signs, "make_val_env": make_six_signs},
            "env_mode='sync' steps parallel_actors=3 .* 18 rows together: .* use env_mode='already_vectorized'",
        ),
        (
            {"env_mode": "already_vectorized", "make_train_env": [not_a_vector_env] * 3},
            "make_train_env is a list of 3 functions, must have 1",
        ),
        (
            {"env_mode": "already_vectorized", "double_buffer": True},
            "double_buffer is True, .*env_mode='async'",
        ),
    ],
    ids=["rows", "single environment", "batched in sync", "list", "double buffer"],
)
def test_misuse_of_already_vectorized_is_explained(
    make_experiment: MakeExperiment, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_experiment(**changes).start()


# Printed lines


def test_no_return_is_printed_where_no_episode_ended(
    make_experiment: MakeExperiment, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = make_experiment(
        verbose=True, epochs=2, train_timesteps_per_epoch=3, val_interval=None, ckpt_interval=None
    )
    experiment.start()
    experiment.learn()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert "return" not in lines[0]
    assert "nan" not in lines[0]
    assert "train return" in lines[1]  # episodes of six steps end in the second epoch


# Functions and version


def test_functions_take_the_keywords_that_programs_pass() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    model(torch.ones(1, 3)).sum().backward()
    assert count_params(model=model) == 6
    assert get_grad_norm(model=model).item() == pytest.approx(6**0.5)
    values, mask = torch.tensor([[1.0, 5.0], [3.0, 7.0]]), torch.tensor([[True, False], [True, True]])
    averages = masked_avg(tensor=values, mask=mask, dim=0)
    torch.testing.assert_close(averages, torch.tensor([2.0, 7.0]), rtol=1e-4, atol=0.0)
    weighed = masked_avg(values, torch.tensor([[0.5, 0.0], [1.5, 1.0]]))
    torch.testing.assert_close(weighed, torch.tensor([2.5, 7.0]), rtol=1e-4, atol=0.0)


def test_the_version_is_newer_than_the_one_that_programs_require() -> None:
    assert isinstance(amago.__version__, str)
    assert amago.__version__ >= "3.4.0"


def test_all_packages_have_the_same_version() -> None:
    packages = Path(__file__).parents[2] / "packages"
    for package in ("kernels", "nets", "envs", "agents", "runner"):
        text = (packages / f"amago-{package}" / "pyproject.toml").read_text()
        assert f'\nversion = "{amago.__version__}"\n' in text
        changelog = (packages / f"amago-{package}" / "CHANGELOG.md").read_text()
        assert f"## {amago.__version__}" in changelog


# A module in the working folder

WORLD = """
import gin
import gymnasium as gym
import numpy as np
from amago.envs import AMAGOEnv

class World(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 4, False, {}

@gin.configurable
def make_world(name="nowhere"):
    return AMAGOEnv(World(), env_name=name)
"""
SCRIPT = """
from amago import Experiment
from amago.cli_utils import use_config

def main():
    use_config({}, gin_configs=["world.gin"])
    experiment = Experiment(run_name="run", ckpt_base_dir=".", dset_name="data", dset_root=".")
    experiment.start()
    experiment.learn()
    print("metrics", experiment.evaluate_test(experiment.make_val_env, episodes=2))
    experiment.close()

if __name__ == "__main__":
    main()
"""
REBUILD = """
from pathlib import Path
from amago.experiment.run_json import read_run
from amago.experiment.trusted import trusting

with trusting("my_world"):
    record = read_run(Path("run"))
    record.bind_gin()
    print("made", record.experiment_arguments(dset_root=None)["make_train_env"]().env_name)
"""
WORLD_GIN = """
import my_world

make_world.name = "flatland"
Experiment.make_train_env = @my_world.make_world
Experiment.make_val_env = @make_world
Experiment.tstep_encoder_type = @FFTstepEncoder
Experiment.traj_encoder_type = @FFTrajEncoder
Experiment.agent_type = @Agent
Experiment.max_seq_len = 4
Experiment.val_timesteps_per_epoch = 4
Experiment.parallel_actors = 2
Experiment.epochs = 1
Experiment.train_timesteps_per_epoch = 8
Experiment.train_batches_per_epoch = 1
Experiment.dloader_workers = 0
Experiment.async_env_mp_context = "spawn"
Experiment.exploration_wrapper_type = None
"""


def test_a_module_in_the_working_folder_is_found_from_a_gin_file_and_by_workers(tmp_path: Path) -> None:
    """The script lies elsewhere, so Python itself does not look into the working folder."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "rebuild.py").write_text(REBUILD)
    (tmp_path / "my_world.py").write_text(WORLD)
    (tmp_path / "world.gin").write_text(WORLD_GIN)
    printed = ""
    for script in ("train.py", "rebuild.py"):
        done = subprocess.run(
            [sys.executable, f"scripts/{script}"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    assert "'Average Total Return in flatland': 4.0" in printed
    assert "made flatland" in printed
