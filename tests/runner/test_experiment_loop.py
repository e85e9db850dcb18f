"""An epoch of `learn`: what happens, in which order, under which names it is logged, and what is left on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.envs import AMAGOEnv
from amago.experiment import Callback, Experiment
from amago.hindsight import trajectory_length
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
MetricsOf = Callable[..., list[dict[str, Any]]]


class Diary(Callback):
    """Writes down what happened in each epoch."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        self.events.append(f"epoch {epoch}")

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        self.events.append(f"{section} of {total_steps}")

    def on_learning_start(self, experiment: Experiment, total_batches: int) -> None:
        self.events.append(f"learn {total_batches}")

    def on_checkpoint(self, experiment: Experiment, epoch: int) -> None:
        self.events.append("checkpoint")

    def on_end(self, experiment: Experiment) -> None:
        self.events.append("end")


def run(experiment: Experiment) -> Experiment:
    experiment.start()
    experiment.learn()
    return experiment


def test_an_epoch_evaluates_collects_learns_and_saves_in_this_order(make_experiment: MakeExperiment) -> None:
    diary = Diary()
    run(make_experiment(epochs=3, val_interval=2, ckpt_interval=2, callbacks=[diary]))
    evaluated = ["val of 36", "train of 60", "learn 4", "checkpoint"]
    assert diary.events == [
        "epoch 0",
        *evaluated,
        "epoch 1",
        "train of 60",
        "learn 4",
        "epoch 2",
        *evaluated,
        "end",
    ]


def test_the_last_epoch_is_saved_at_any_interval_and_without_learning(
    make_experiment: MakeExperiment,
) -> None:
    experiment = run(
        make_experiment(epochs=3, ckpt_interval=50, start_learning_at_epoch=5, val_interval=None)
    )
    names = sorted(path.name for path in (experiment.ckpt_dir / "training_states").iterdir())
    assert names == ["run_epoch_0", "run_epoch_2"]
    assert experiment.checkpointer.latest_policy.is_file()
    assert experiment.checkpointer.policy_weights(0).is_file()


def test_counters_and_learning_rate_follow_the_updates(
    make_experiment: MakeExperiment, metrics_of: MetricsOf
) -> None:
    """The first update has rate 0; four batches are two updates."""
    experiment = run(
        make_experiment(batches_per_update=2, learning_rate=0.5, lr_warmup_steps=4, log_interval=1)
    )
    counters = experiment.counters
    assert (counters.epoch, counters.env_steps, counters.gradient_steps) == (2, 120, 4)
    assert counters.env_steps_by_name == {"memory": 120}
    logged = [line["metrics"] for line in metrics_of(experiment, "train-update")]
    assert [line["Learning Rate"] for line in logged if "Learning Rate" in line] == [0.0, 0.125, 0.25, 0.375]


def test_a_run_writes_the_documented_files(make_experiment: MakeExperiment) -> None:
    experiment = run(make_experiment(epochs=1))
    experiment.close()
    files = {str(p.relative_to(experiment.run_dir)) for p in experiment.run_dir.rglob("*") if p.is_file()}
    assert files == {
        "config.txt",
        "run.json",
        "metrics.jsonl",
        "summary.json",
        "learning_curve.png",
        "run.lock",
        "ckpts/latest/policy.pt",
        "ckpts/latest/progress.json",
        "ckpts/policy_weights/policy_epoch_0.pt",
        "ckpts/training_states/run_epoch_0/policy.pt",
        "ckpts/training_states/run_epoch_0/lr_schedule.pt",
        "ckpts/training_states/run_epoch_0/optimizer.pt",
        "ckpts/training_states/run_epoch_0/state.json",
    }


def test_metrics_have_the_documented_names(make_experiment: MakeExperiment, metrics_of: MetricsOf) -> None:
    experiment = run(make_experiment(epochs=1))
    episodes = {
        "Average Total Return in memory",
        "Bottom Quintile Total Return in memory",
        "Average Total Return (Across All Env Names)",
        "Average Episode Length in memory",
        "Average Last Step Right in memory",
    }
    for section in ("val", "train"):
        assert set(metrics_of(experiment, section)[0]["metrics"]) == episodes
    updates = metrics_of(experiment, "train-update")
    assert len(updates) == 2  # 4 batches, one log every 2
    assert {
        "Loss",
        "Actor Loss",
        "Critic Loss",
        "Learning Rate",
        "Actor Grad Norm",
        "Critic Grad Norm",
        "TrajEncoder Grad Norm",
        "TstepEncoder Grad Norm",
        "Min TD Target",
        "Max TD Target",
        "Filter Mean",
        "PopArt mu (mean over gamma)",
    } <= set(updates[0]["metrics"])
    assert metrics_of(experiment, "dataset")[0]["axes"] == {
        "total_frames": 60,
        "total_frames-memory": 60,
        "Epoch": 0,
        "gradient_steps": 0,
    }


def test_unfinished_episodes_continue_in_the_next_epoch(
    make_experiment: MakeExperiment, metrics_of: MetricsOf
) -> None:
    """Episodes of 6 steps and epochs of 4: without carrying over, none would ever finish."""
    experiment = run(
        make_experiment(epochs=3, train_timesteps_per_epoch=4, ckpt_interval=None, start_learning_at_epoch=9)
    )
    assert len(metrics_of(experiment, "train")) == 2


def test_close_writes_unfinished_episodes(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=1, ckpt_interval=None, train_timesteps_per_epoch=8)
    experiment.start()
    experiment.collect_new_training_data()
    experiment.close()
    files = list(experiment.dataset.save_new_trajs_to.iterdir())
    # episodes of 6 steps: each actor has one whole and 2 steps of the next
    stored = sorted(trajectory_length(path) for path in files)
    assert stored == [2] * experiment.parallel_actors + [6] * experiment.parallel_actors


def test_environments_are_reset_when_forced(make_experiment: MakeExperiment, metrics_of: MetricsOf) -> None:
    experiment = run(
        make_experiment(
            epochs=3,
            train_timesteps_per_epoch=4,
            ckpt_interval=None,
            start_learning_at_epoch=9,
            force_reset_train_envs_every=1,
        )
    )
    assert metrics_of(experiment, "train") == []


def test_evaluate_test_returns_and_logs_its_metrics(
    make_experiment: MakeExperiment, metrics_of: MetricsOf
) -> None:
    experiment = make_experiment()
    experiment.start()
    metrics = experiment.evaluate_test(experiment.make_val_env, timesteps=12)
    assert metrics == metrics_of(experiment, "test")[0]["metrics"]
    assert 0.0 <= metrics["Average Total Return in memory"] <= 6.0


def test_an_evaluation_without_a_finished_episode_has_no_metrics(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.start()
    with pytest.warns(AmagoWarning, match="no episode finished within 5 timesteps"):
        assert experiment.evaluate_test(experiment.make_val_env, timesteps=5) == {}


def test_invalid_arguments_of_evaluate_test_are_rejected(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.start()
    with pytest.raises(ValueError, match="timesteps is 0"):
        experiment.evaluate_test(experiment.make_val_env, timesteps=0)
    with pytest.raises(ValueError, match="episodes is -1"):
        experiment.evaluate_test(experiment.make_val_env, episodes=-1)
    with pytest.raises(ValueError, match=r"observation space .*\(4,\).*built for .*\(3,\)"):
        experiment.evaluate_test(lambda: AMAGOEnv(gym.make("CartPole-v1")), timesteps=5)
    experiment.close()


def test_resuming_with_another_network_size_is_an_error(make_experiment: MakeExperiment) -> None:
    wide = run(make_experiment(epochs=1))
    wide.close()
    gin.bind_parameter("FFTrajEncoder.d_model", 24)
    with pytest.raises(ValueError, match=r"(?s)other parameters than .*config\.txt.*traj_encoder"):
        make_experiment(epochs=2, resume=True).start()


def test_evaluate_test_saves_whole_episodes(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(max_seq_len=2, traj_save_len=3)
    experiment.start()
    experiment.evaluate_test(experiment.make_val_env, timesteps=20, save_trajs_to=tmp_path / "saved")
    files = list((tmp_path / "saved").glob("memory_*.npz"))
    assert len(files) == 9  # three actors, three episodes each
    assert all(len(np.load(path)["rews"]) == 6 for path in files)


def test_a_resumed_run_continues_its_wandb_run_offline(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for epochs, resume in ((1, False), (2, True)):
        options = {"log_to_wandb": True, "wandb_project": "tests", "resume": resume}
        experiment = run(make_experiment(epochs=epochs, **options))
        experiment.close()
    files = list((experiment.run_dir / "wandb_logs").rglob("*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # run-{id}.wandb


def test_double_buffering_collects_and_records_all_timesteps(
    make_experiment: MakeExperiment,
) -> None:
    experiment = run(make_experiment(env_mode="async", double_buffer=True, parallel_actors=4))
    assert experiment.counters.env_steps_by_name == {"memory": 2 * 4 * 20}
    files = experiment.dataset.save_new_trajs_to.iterdir()
    assert sum(trajectory_length(path) for path in files) == 2 * 4 * 20
    experiment.close()
    resumed = make_experiment(env_mode="async", double_buffer=True, parallel_actors=4, epochs=3, resume=True)
    assert run(resumed).counters.env_steps == 3 * 4 * 20
    resumed.close()
    with pytest.raises(ValueError, match="double_buffer differs"):
        make_experiment(env_mode="async", parallel_actors=4, epochs=4, resume=True).start()


@pytest.mark.parametrize(("threads", "expected"), [("auto", 1), (3, 3)])
def test_threads_are_those_of_the_run_until_it_is_closed(
    make_experiment: MakeExperiment, threads: Any, expected: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        experiment = make_experiment(threads=threads)
        experiment.start()
        assert torch.get_num_threads() == expected
        experiment.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
