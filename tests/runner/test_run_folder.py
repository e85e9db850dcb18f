"""One run, one folder: its identity, its lock, and what resume and overwrite do; its summary and picture."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from amago.experiment import Callback, Experiment
from amago.experiment.run_folder import RunInUseError
from amago.experiment.run_json import read_run
from amago.experiment.summary import Summary
from amago.loading import DiskTrajDataset
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
MetricsOf = Callable[..., list[dict[str, Any]]]

HOLD = """
import os
import sys
from pathlib import Path
from amago.experiment.run_folder import RunLock
lock = RunLock(Path(sys.argv[1]))
lock.acquire()
if not os.fork():  # a worker, which outlives the process when that is killed
    sys.stdin.read()
    os._exit(0)
print("locked", flush=True)
sys.stdin.read()
"""


class Interrupt(Callback):
    """Raises at the start of an epoch."""

    def __init__(self, epoch: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.epoch, self.error = epoch, error

    def on_epoch_start(self, experiment: Experiment, epoch: int) -> None:
        if epoch == self.epoch:
            raise self.error


def run(experiment: Experiment) -> Experiment:
    experiment.start()
    experiment.learn()
    experiment.close()
    return experiment


@contextmanager
def other_process_holding(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock of a run's folder, with a worker that lives until the end of the test."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "locked\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def json_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


# The lock


@pytest.mark.parametrize("how", [{"resume": True}, {"resume": "auto"}, {"overwrite": True}, {}])
def test_a_second_run_in_a_folder_is_refused_and_changes_nothing(
    make_experiment: MakeExperiment, how: dict[str, Any]
) -> None:
    folder = run(make_experiment(epochs=1)).run_dir
    with other_process_holding(folder) as holder:
        before = contents(folder)
        with pytest.raises(RunInUseError, match=rf"process {holder.pid} on .*: wait until it ends"):
            make_experiment(epochs=2, **how).start()
        assert contents(folder) == before


def test_a_lock_that_a_killed_process_left_is_taken_over(make_experiment: MakeExperiment) -> None:
    folder = run(make_experiment(epochs=1)).run_dir
    with other_process_holding(folder) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert json_of(folder / "run.holder.json")["pid"] == holder.pid
        assert run(make_experiment(epochs=2, resume=True)).counters.epoch == 2
    assert not (folder / "run.holder.json").exists()


def test_an_experiment_that_is_not_closed_is_named_as_the_holder(make_experiment: MakeExperiment) -> None:
    first = make_experiment()
    first.start()
    second = make_experiment(resume="auto")
    with pytest.raises(RunInUseError, match=rf"process {os.getpid()} .*close\(\) the Experiment"):
        second.start()
    first.close()
    second.start()
    second.close()


def test_a_collector_shares_the_folder_of_its_learner(make_experiment: MakeExperiment) -> None:
    learner = make_experiment(epochs=1)
    learner.start()
    collector = make_experiment(ckpt_interval=None, always_save_latest=False, epochs=1)
    collector.start()
    assert collector.run_id == learner.run_id
    for experiment in (collector, learner):
        experiment.close()


# New, continued and replaced runs


def test_nothing_is_written_before_start(make_experiment: MakeExperiment) -> None:
    assert not make_experiment().run_dir.exists()


def test_an_existing_run_is_refused_with_the_ways_out(make_experiment: MakeExperiment) -> None:
    folder = run(make_experiment(epochs=1)).run_dir
    before = contents(folder)
    with pytest.raises(FileExistsError, match=r"resume=True .*'auto'.*overwrite=True.* another run_name"):
        make_experiment(epochs=1).start()
    assert contents(folder) == before


def test_resume_and_overwrite_exclude_each_other(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ValueError, match="resume is 'auto' and overwrite is True"):
        make_experiment(resume="auto", overwrite=True)
    with pytest.raises(ValueError, match="resume must be True or False or 'auto', got 'yes'"):
        make_experiment(resume="yes")


def test_auto_starts_a_run_and_continues_it_under_its_identity(make_experiment: MakeExperiment) -> None:
    first = run(make_experiment(epochs=1, resume="auto"))
    identity = read_run(first.run_dir)
    assert len(identity.run_id) == 12
    assert int(identity.run_id, 16) >= 0
    assert identity.created > 1.7e9
    second = run(make_experiment(epochs=3, resume="auto"))
    assert second.counters.env_steps == 3 * 60
    again = read_run(first.run_dir)
    assert (again.run_id, again.created) == (identity.run_id, identity.created)
    assert second.run_id == identity.run_id


def test_auto_replaces_a_run_that_was_stopped_before_its_first_checkpoint(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    options = {"dataset": None, "dset_root": tmp_path / "runs", "dset_name": "run", "resume": "auto"}
    stopped = make_experiment(**options, callbacks=[Interrupt(0)])
    stopped.start()
    stopped.collect_new_training_data()
    stopped.close()
    old_files = set(contents(stopped.run_dir / "buffer"))
    assert old_files
    continued = run(make_experiment(**options, epochs=1))
    assert continued.run_id != stopped.run_id
    assert not old_files & set(contents(stopped.run_dir / "buffer"))
    epochs = [json.loads(line) for line in (continued.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in epochs if line["section"] == "val"]) == 1


def test_overwrite_replaces_the_run_and_nothing_else(
    make_experiment: MakeExperiment, metrics_of: MetricsOf, tmp_path: Path
) -> None:
    """The buffer is in the run's folder, as training scripts and the command line have it."""
    options = {"dataset": None, "dset_root": tmp_path / "runs", "dset_name": "run"}
    first = run(make_experiment(epochs=3, ckpt_interval=1, **options))
    folder = first.run_dir
    protected = folder / "buffer" / "protected" / next((folder / "buffer" / "fifo").iterdir()).name
    protected.write_bytes(b"kept")
    (folder / "notes.txt").write_text("mine")
    videos = [folder / "episodes.gif", folder / "episodes.mp4"]  # what eval --render leaves
    for video in videos:
        video.write_bytes(b"old")
    old_files = {path.name for path in (folder / "buffer" / "fifo").iterdir()}
    second = make_experiment(epochs=1, overwrite=True, start_learning_at_epoch=1, **options)
    run(second)
    assert second.run_id != first.run_id
    assert read_run(folder).run_id == second.run_id
    assert len(metrics_of(second, "train")) == 1
    assert [path.name for path in (folder / "ckpts" / "training_states").iterdir()] == ["run_epoch_0"]
    assert not old_files & {path.name for path in (folder / "buffer" / "fifo").iterdir()}
    assert protected.read_bytes() == b"kept"
    assert (folder / "notes.txt").read_text() == "mine"
    assert not any(video.exists() for video in videos)


def test_a_run_that_replaces_another_says_that_it_learns_from_trajectories_elsewhere(
    make_experiment: MakeExperiment,
) -> None:
    """The buffer is beside the run's folder, where other runs may share it."""
    run(make_experiment(epochs=1))
    with pytest.warns(AmagoWarning, match="trajectories in .* stay"):
        run(make_experiment(epochs=1, overwrite=True))


def test_overwriting_a_run_that_only_learns_keeps_its_trajectories(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    options = {"dataset": None, "dset_root": tmp_path / "runs", "dset_name": "run", "val_interval": None}
    folder = run(make_experiment(epochs=1, **options)).run_dir
    before = set((folder / "buffer" / "fifo").iterdir())
    run(make_experiment(epochs=1, overwrite=True, train_timesteps_per_epoch=0, **options))
    assert set((folder / "buffer" / "fifo").iterdir()) == before


# Summary and picture

KEYS = {
    *(
        "run",
        "run_id",
        "env",
        "seed",
        "status",
        "mean_return",
        "success_by_attempt",
        "metrics",
        "eval_episodes",
    ),
    *("env_steps", "gradient_steps", "skipped_updates", "wall_seconds"),
}


def test_a_script_writes_the_summary_and_the_picture_of_its_run(make_experiment: MakeExperiment) -> None:
    experiment = run(make_experiment(epochs=2, val_interval=1))
    summary = json_of(experiment.run_dir / "summary.json")
    assert set(summary) >= KEYS
    assert (summary["run"], summary["run_id"], summary["seed"]) == ("run", experiment.run_id, 7)
    assert (summary["env"], summary["status"]) == ("memory", "finished")
    assert (summary["agent"], summary["tstep_encoder"], summary["traj_encoder"]) == ("agent", "ff", "ff")
    assert (summary["env_steps"], summary["gradient_steps"], summary["skipped_updates"]) == (120, 8, 0)
    # The evaluation at the start of the second epoch: 12 steps of 3 actors, episodes of 6 steps.
    assert (summary["eval_episodes"], summary["eval_env_steps"]) == (6, 60)
    assert summary["mean_return"] == summary["metrics"]["Average Total Return in memory"]
    assert Summary.load(experiment.run_dir) == Summary(**summary)
    with Image.open(experiment.run_dir / "learning_curve.png") as image:
        assert image.size[0] >= 800


def test_the_summary_takes_the_figures_of_an_evaluation_after_training(
    make_experiment: MakeExperiment,
) -> None:
    experiment = make_experiment(epochs=1)
    experiment.start()
    experiment.learn()
    metrics = experiment.evaluate_test(experiment.make_val_env, episodes=9)
    experiment.write_summary(metrics, 9)
    summary = json_of(experiment.run_dir / "summary.json")
    assert summary["metrics"] == metrics
    assert (summary["eval_episodes"], summary["eval_env_steps"]) == (9, 60)


def test_a_stopped_run_has_a_summary_that_says_so(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=3, callbacks=[Interrupt(1)])
    experiment.start()
    with pytest.raises(KeyboardInterrupt):
        experiment.learn()
    summary = json_of(experiment.run_dir / "summary.json")
    assert (summary["status"], summary["env_steps"]) == ("stopped", 60)


def test_a_finished_run_that_is_started_again_keeps_its_summary(make_experiment: MakeExperiment) -> None:
    experiment = run(make_experiment(epochs=2, val_interval=1))
    before = (experiment.run_dir / "summary.json").read_text()
    run(make_experiment(epochs=2, resume="auto"))
    assert (experiment.run_dir / "summary.json").read_text() == before


def test_a_resumed_run_without_an_evaluation_keeps_that_of_before(make_experiment: MakeExperiment) -> None:
    first = run(make_experiment(epochs=1, val_interval=1))
    expected = json_of(first.run_dir / "summary.json")["mean_return"]
    second = run(make_experiment(epochs=2, val_interval=None, resume=True))
    summary = json_of(second.run_dir / "summary.json")
    assert (summary["mean_return"], summary["eval_env_steps"], summary["env_steps"]) == (expected, 0, 120)


def test_wall_seconds_are_summed_over_all_sessions(make_experiment: MakeExperiment) -> None:
    first = run(make_experiment(epochs=1))
    assert first.counters.wall_seconds > 0.0
    saved = json_of(first.checkpointer.training_state(0) / "state.json")["counters"]["wall_seconds"]
    assert 0.0 < saved <= first.counters.wall_seconds
    resumed = make_experiment(epochs=2, resume=True)
    resumed.start()
    assert resumed.counters.wall_seconds == saved
    resumed.learn()
    assert resumed.counters.wall_seconds > saved
    assert json_of(resumed.run_dir / "summary.json")["wall_seconds"] == pytest.approx(
        resumed.counters.wall_seconds, abs=0.006
    )


# Silence is never success


def test_an_epoch_without_a_finished_trajectory_names_traj_save_len(make_experiment: MakeExperiment) -> None:
    """Episodes of 6 steps, epochs of 2, and no checkpoint, which would write unfinished episodes."""
    options = {"train_timesteps_per_epoch": 2, "max_seq_len": 2, "ckpt_interval": None, "val_interval": None}
    experiment = make_experiment(epochs=1, **options)
    experiment.start()
    with pytest.warns(AmagoWarning) as caught:
        experiment.learn()
    messages = [str(warning.message) for warning in caught]
    assert any(
        "no trajectory is finished yet" in text and "Set traj_save_len to at most 2" in text
        for text in messages
    )
    assert any("the run 'run' has ended without an update" in text for text in messages)


def test_a_dataset_that_is_not_ready_is_described(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    dataset = DiskTrajDataset(tmp_path, "buffer", 1000, dset_min_size=500)
    experiment = make_experiment(epochs=1, dataset=dataset)
    experiment.start()
    with pytest.warns(
        AmagoWarning, match=r"an epoch made no updates: the dataset is not ready \(buffer: 9 traj"
    ):
        experiment.learn()


def test_a_run_that_is_not_to_learn_ends_without_a_warning(
    make_experiment: MakeExperiment, recwarn: pytest.WarningsRecorder
) -> None:
    run(make_experiment(epochs=1, start_learning_at_epoch=float("inf")))
    assert not [str(warning.message) for warning in recwarn if "update" in str(warning.message)]


def test_an_evaluation_during_training_without_a_finished_episode_says_so(
    make_experiment: MakeExperiment,
) -> None:
    experiment = make_experiment(epochs=1, val_timesteps_per_epoch=5)
    experiment.start()
    with pytest.warns(
        AmagoWarning, match="no episode finished in an evaluation of 5 .*val_timesteps_per_epoch"
    ):
        experiment.learn()
    assert json_of(experiment.run_dir / "summary.json")["mean_return"] is None
