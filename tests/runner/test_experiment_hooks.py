"""Subclasses of Experiment: each method that may be overridden is called where its name says."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from amago.agent import Batch
from amago.envs import AMAGOEnv
from amago.experiment import Experiment
from amago.utils import call_async_env

MakeExperiment = Callable[..., Experiment]

HOOKS = (
    "init_dsets",
    "init_dloaders",
    "init_envs",
    "init_model",
    "init_optimizer",
    "init_checkpoints",
    "init_logger",
    "learn",
    "collect_new_training_data",
    "evaluate_val",
    "interact",
    "train_step",
    "log",
    "x_axis_metrics",
    "policy_metrics",
    "save_checkpoint",
)


class Counted(Experiment):
    """Counts the calls of every hook."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: list[str] = []


def counted(name: str) -> Callable[..., Any]:
    def hook(self: Counted, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(name)
        return getattr(super(Counted, self), name)(*args, **kwargs)

    return hook


for name in HOOKS:
    setattr(Counted, name, counted(name))


def test_every_hook_is_called(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(cls=Counted, epochs=2, val_interval=1, ckpt_interval=1, log_interval=2)
    experiment.start()
    assert experiment.calls == list(HOOKS[:7])
    experiment.learn()
    calls = Counter(experiment.calls)
    assert calls["train_step"] == 2 * 4
    assert calls["evaluate_val"] == calls["collect_new_training_data"] == calls["save_checkpoint"] == 2
    assert calls["interact"] == calls["policy_metrics"] == 4
    # val, train, dataset, time and learning, and two batches
    assert calls["log"] == calls["x_axis_metrics"] == 2 * (5 + 2)


class OwnTrainStep(Experiment):
    """Adds a metric, and doubles the rewards of each batch."""

    def train_step(self, batch: Batch, log_step: bool) -> dict[str, Any]:
        batch.rews = 2.0 * batch.rews
        return {
            **super().train_step(batch, log_step),
            **({"Largest Reward": batch.rews.max()} if log_step else {}),
        }

    def x_axis_metrics(self) -> dict[str, Any]:
        return {**super().x_axis_metrics(), "updates times ten": 10 * self.grad_update_counter}

    def init_optimizer(self, policy: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(policy.trainable_params, lr=0.5)


def test_return_values_of_overridden_hooks_are_used(make_experiment: MakeExperiment, metrics_of: Any) -> None:
    experiment = make_experiment(cls=OwnTrainStep, epochs=1, lr_warmup_steps=0)
    experiment.start()
    experiment.learn()
    updates = metrics_of(experiment, "train-update")
    assert all(line["metrics"]["Largest Reward"] == 2.0 for line in updates)
    assert [line["axes"]["updates times ten"] for line in updates] == [10, 30]
    assert isinstance(experiment.optimizer, torch.optim.SGD)
    assert experiment.lr_schedule.get_last_lr() == [0.5]


def test_documented_attributes_exist_after_start(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=1)
    experiment.start()
    assert experiment.policy_aclr is experiment.policy
    assert torch.device("cpu") == experiment.DEVICE == next(experiment.policy.parameters()).device
    assert experiment.accelerator.is_main_process
    assert experiment.ckpt_dir == experiment.run_dir / "ckpts"
    assert experiment.rl2_space.shape == (1 + 2,)
    assert experiment.train_envs.num_envs == experiment.val_envs.num_envs == 3
    assert experiment.train_dloader.dataset is experiment.dataset
    assert (experiment.epoch, experiment.grad_update_counter) == (0, 0)
    experiment.learn()
    assert (experiment.epoch, experiment.grad_update_counter) == (1, 4)
    assert experiment.hidden_state is None  # FFTrajEncoder has none


@pytest.mark.parametrize("options", [{}, {"env_mode": "async"}, {"env_mode": "async", "double_buffer": True}])
def test_a_method_of_every_environment_can_be_called(
    make_experiment: MakeExperiment, options: dict[str, Any]
) -> None:
    experiment = make_experiment(epochs=1, **options)
    experiment.start()
    for envs in (experiment.train_envs, experiment.val_envs):
        spaces = call_async_env(envs, "get_wrapper_attr", "action_space")
        assert [space.n for space in spaces] == [2, 2, 2]


def test_masks_put_on_the_agent_after_start_take_effect(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=1, l2_coeff=0.0)
    experiment.start()

    def nothing_counts(batch: Batch, loss: Tensor, pad_mask: Tensor) -> Tensor:
        return torch.zeros_like(pad_mask)

    experiment.policy.edit_actor_mask = nothing_counts
    experiment.policy.edit_critic_mask = nothing_counts
    before = [parameter.clone() for parameter in experiment.policy.trainable_params]
    experiment.learn()
    assert all(map(torch.equal, before, experiment.policy.trainable_params))


def test_environments_are_created_before_any_thread(make_experiment: MakeExperiment) -> None:
    """Forking a process with threads can deadlock the child."""
    threads: list[int] = []

    class OwnEnvs(Experiment):
        def init_envs(self) -> None:
            threads.append(threading.active_count())
            super().init_envs()
            threads.append(threading.active_count())

    before = threading.active_count()
    experiment = make_experiment(cls=OwnEnvs, env_mode="async", envs_per_worker=2)
    experiment.start()
    assert threads == [before, before]
    workers = experiment.val_envs
    experiment.learn()
    assert experiment.val_envs is workers


def test_validation_environments_with_other_spaces_are_refused(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(make_val_env=lambda: AMAGOEnv(gym.make("CartPole-v1")))
    with pytest.raises(ValueError, match=r"observation space .*\(4,\).*built for .*\(3,\)"):
        experiment.start()


def test_an_experiment_of_zero_epochs_only_evaluates(make_experiment: MakeExperiment) -> None:
    trained = make_experiment(epochs=1)
    trained.start()
    trained.learn()
    experiment = make_experiment(
        "elsewhere",
        epochs=0,
        ckpt_interval=None,
        val_interval=None,
        start_learning_at_epoch=float("inf"),
        start_collecting_at_epoch=float("inf"),
        exploration_wrapper_type=None,
        train_timesteps_per_epoch=0,
    )
    experiment.start()
    assert experiment.train_envs is None
    weights = trained.checkpointer.latest_policy
    experiment.load_checkpoint_from_path(weights, is_accelerate_state=False)
    assert "Average Total Return in memory" in experiment.evaluate_val()
    experiment.learn()
    assert experiment.counters.env_steps == 0


def test_a_failed_start_stops_its_environment_workers(make_experiment: MakeExperiment) -> None:
    class Broken(Experiment):
        def init_model(self) -> None:
            raise RuntimeError("no model")

    experiment = make_experiment(cls=Broken, env_mode="async", envs_per_worker=3)
    with pytest.raises(RuntimeError, match="no model"):
        experiment.start()
    with pytest.raises(RuntimeError, match="closed"):
        experiment.val_envs.reset()


def test_a_loop_of_the_users_own_collects_as_much_in_every_call(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.start()
    for calls in (1, 2, 3):
        experiment.collect_new_training_data()
        actors = experiment.parallel_actors
        assert experiment.counters.env_steps == calls * actors * experiment.train_timesteps_per_epoch
