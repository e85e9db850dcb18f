"""`overlap_collection`: environments step during the updates of an epoch."""

import copy
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runner.conftest import MemoryEnv
from tests.runner.ranks import finish, start_ranks
from tests.runner.test_stopping import Signals, learn
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli_utils import switch_async_mode
from amago.envs import AMAGOEnv
from amago.envs.vector import EnvWorkerError
from amago.experiment import Callback, Experiment, RunStopped
from amago.experiment.rollout import Rollout
from amago.experiment.rollout_between import RolloutBetween
from amago.hindsight import trajectory_length
from amago.loading import BatchLoader, DiskTrajDataset, DoNothingDataset

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
OVERLAP: dict[str, Any] = {"overlap_collection": True, "epochs": 3, "val_interval": 1}


class Order(Callback):
    """Notes the order of steps and batches in every epoch, and what the policies were."""

    def __init__(self) -> None:
        self.events: dict[int, str] = {}
        self.at_start: dict[int, Any] = {}

    def on_rollout_start(self, experiment: Experiment, section: str, total_steps: int | None) -> None:
        if section == "train":
            self.at_start[experiment.epoch] = copy.deepcopy(experiment.policy.state_dict())

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        if section == "train":
            self._note(experiment, "s")

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        self._note(experiment, "B")

    def _note(self, experiment: Experiment, event: str) -> None:
        self.events[experiment.epoch] = self.events.get(experiment.epoch, "") + event


def recorded_steps(experiment: Experiment) -> int:
    assert experiment.dataset is not None
    folder = experiment.dataset.save_new_trajs_to
    assert folder is not None
    return sum(trajectory_length(path) for path in folder.iterdir())


@pytest.mark.parametrize(
    ("timesteps", "events"),
    [(8, "sBssBssBssBs"), (20, 4 * "s" + "B" + 2 * (5 * "s" + "B") + 5 * "s" + "Bs"), (10, "ssBssBsssBssBs")],
)
def test_steps_are_spread_over_the_batches_after_the_first_epoch(
    make_experiment: MakeExperiment, timesteps: int, events: str
) -> None:
    order = Order()
    options = {"train_timesteps_per_epoch": timesteps, "traj_save_len": 8, "callbacks": [order]}
    experiment = learn(make_experiment(**OVERLAP, **options))
    assert order.events == {0: timesteps * "s" + 4 * "B", 1: events, 2: events}
    assert experiment.counters.env_steps == 3 * 3 * timesteps == recorded_steps(experiment)
    assert experiment.counters.env_steps_by_name == {"memory": 3 * 3 * timesteps}
    assert experiment.counters.gradient_steps == 3 * 4


def test_a_step_may_take_several_batches(make_experiment: MakeExperiment) -> None:
    order = Order()
    options = {"train_timesteps_per_epoch": 12, "train_batches_per_epoch": 36, "callbacks": [order]}
    learn(make_experiment(**OVERLAP, **options))
    assert order.events[1] == 12 * "BBBs"


def test_actions_are_those_of_the_policy_at_the_start_of_the_epoch(make_experiment: MakeExperiment) -> None:
    order = Order()
    experiment = learn(make_experiment(**OVERLAP, callbacks=[order]))
    assert experiment._acting_copy is not None
    acting, trained = experiment._acting_copy.state_dict(), experiment.policy.state_dict()
    assert all(torch.equal(acting[name], value) for name, value in order.at_start[2].items())
    assert any(not torch.equal(acting[name], value) for name, value in trained.items())
    assert experiment.collector is not None
    assert experiment.collector._rollout.agent is experiment._acting_copy


def test_equal_seeds_give_equal_runs_in_any_mode(make_experiment: MakeExperiment) -> None:
    """Loader workers must not list files that are written while they load."""

    def weights(folder: str, **options: Any) -> dict[str, torch.Tensor]:
        experiment = learn(make_experiment(folder, **{**OVERLAP, "traj_save_len": 8, **options}))
        assert recorded_steps(experiment) == 3 * 60
        return experiment.policy.state_dict()

    first = weights("first")
    for folder, options in (
        ("again", {}),
        ("async", {"env_mode": "async"}),
        ("loader", {"env_mode": "async", "dloader_workers": 2}),
    ):
        other = weights(folder, **options)
        assert all(torch.equal(first[name], other[name]) for name in first), folder
    plain = weights("plain", overlap_collection=False)
    assert any(not torch.equal(first[name], plain[name]) for name in first)


def test_updates_see_data_of_earlier_epochs(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    seen: dict[int, int] = {}

    class Seen(DiskTrajDataset):
        def sampling_weights(self, files: Any) -> None:
            seen[self.epoch] = len(files)

    dataset = Seen(tmp_path, "own", 1000)
    options = {"train_timesteps_per_epoch": 16, "traj_save_len": 8, "stagger_traj_file_lengths": False}
    learn(make_experiment(**OVERLAP, **options, dataset=dataset, ckpt_interval=None))
    assert seen[0] == seen[1] < seen[2]


@pytest.mark.parametrize("env_mode", ["sync", "async"])
def test_a_stopped_run_makes_up_for_the_rest_of_its_epoch(
    make_experiment: MakeExperiment, metrics_of: Callable[..., list[Any]], env_mode: str
) -> None:
    options: dict[str, Any] = {**OVERLAP, "ckpt_interval": 2, "env_mode": env_mode}
    for moment, before in {"train": (69, 5), "batch": (105, 7)}.items():
        with pytest.raises(RunStopped):
            learn(make_experiment(moment, **options, callbacks=[Signals(moment)]))
        resumed = make_experiment(moment, **options, resume=True)
        resumed.start()
        # The running step is finished, and so is the update that follows the signal.
        assert (resumed.counters.env_steps, resumed.counters.gradient_steps) == before
        assert resumed.counters.env_steps_by_name == {"memory": before[0]}
        assert resumed.run_state.in_epoch.batches == before[1] - 4
        resumed.learn()
        assert resumed.counters.env_steps == resumed.counters.env_steps_by_name["memory"] == 60 * 3
        assert recorded_steps(resumed) == 60 * 3
        assert resumed.counters.gradient_steps == 4 * 3
        # After the stop among batches, no episode ends in the last five steps of the epoch.
        for section in ("val", "train", "dataset") if moment == "train" else ("val", "dataset"):
            epochs = Counter(line["axes"]["Epoch"] for line in metrics_of(resumed, section))
            assert epochs == dict.fromkeys(range(3), 1), section


def test_a_run_that_was_stopped_twice_at_the_same_moments_is_the_same(
    make_experiment: MakeExperiment,
) -> None:
    def weights(folder: str) -> dict[str, torch.Tensor]:
        with pytest.raises(RunStopped):
            learn(make_experiment(folder, **OVERLAP, callbacks=[Signals("train")]))
        return learn(make_experiment(folder, **OVERLAP, resume=True)).policy.state_dict()

    first, second = weights("first"), weights("second")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_learn_the_same_weights_and_stop_together(tmp_path: Path) -> None:
    script = Path(__file__).parent / "joint_run.py"
    stopped = start_ranks(script, [str(tmp_path), "3", "False", "False", "1", "overlap"])
    errors = [process.communicate(timeout=180)[1] for process in stopped]
    assert [process.returncode for process in stopped] == [128 + signal.SIGTERM] * 2, errors
    finish(start_ranks(script, [str(tmp_path), "3", "False", "True", "-1", "overlap"]))
    results = [json.loads((tmp_path / f"result_{each}.json").read_text()) for each in range(2)]
    assert results[0] == results[1]
    assert (results[0]["updates"], results[0]["env_steps"]) == (3 * 3, 3 * 50 * 4 * 2)


class FailingEnv(MemoryEnv):
    """Fails in its 25th step."""

    steps = 0

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 25:
            raise OSError("no more")
        return super().step(action)


def make_failing_env() -> AMAGOEnv:
    return AMAGOEnv(FailingEnv(), env_name="memory")


@pytest.mark.parametrize(("env_mode", "error"), [("sync", OSError), ("async", EnvWorkerError)])
def test_an_environment_that_fails_ends_the_run_with_its_error(
    make_experiment: MakeExperiment, env_mode: str, error: type[Exception]
) -> None:
    experiment = make_experiment(**OVERLAP, env_mode=env_mode, make_train_env=make_failing_env)
    with pytest.raises(error, match="no more"):
        learn(experiment)
    assert experiment.epoch == 1
    # Steps of the other actors in the failing step are not recorded.
    assert recorded_steps(experiment) == experiment.counters.env_steps == 24 * 3


def test_a_failing_update_leaves_no_step_running(make_experiment: MakeExperiment) -> None:
    class Failing(Experiment):
        def train_step(self, batch: Any, log_step: bool) -> dict[str, Any]:
            if self.epoch == 1:
                raise ArithmeticError("no update")
            return super().train_step(batch, log_step)

    experiment = make_experiment(cls=Failing, **OVERLAP, env_mode="async")
    experiment.start()
    with pytest.raises(ArithmeticError, match="no update"):
        experiment.learn()
    assert experiment.train_envs is not None
    assert experiment.train_envs.exploration_state()  # raises while a step is running
    experiment.close()
    assert recorded_steps(experiment) == 60 + 5 * 3


def test_fewer_items_than_announced_take_all_steps(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.start()
    experiment.collect_new_training_data()
    assert experiment.collector is not None
    steps: list[int] = []
    rollout = experiment.collector._rollout
    assert isinstance(rollout, Rollout)
    between = RolloutBetween(rollout, 10, progress=steps.append)
    assert list(between.spread_over(iter("ab"), 5)) == ["a", "b"]
    assert steps == 10 * [3]


def test_both_rates_are_over_the_time_of_both(
    make_experiment: MakeExperiment, metrics_of: Callable[..., list[Any]]
) -> None:
    experiment = learn(make_experiment(**OVERLAP))
    first, *others = (line["metrics"] for line in metrics_of(experiment, "time"))
    parts = ("environments", "policy", "recording", "loading", "update")
    for line in others:
        both = sum(line[part] for part in parts)
        assert line["steps_per_second"] == pytest.approx(60 / both)
        assert line["updates_per_second"] == pytest.approx(4 / both)
    assert first["steps_per_second"] > 60 / sum(first[part] for part in parts)


class Listed(DiskTrajDataset):
    """Leaves a file for every worker that has listed the buffer."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            (self.dset_root / f"listed-{worker.id}").touch()


def test_the_loader_waits_until_its_workers_have_listed_the_files(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    experiment = learn(make_experiment(epochs=1))
    assert isinstance(experiment.dataset, DiskTrajDataset)
    dataset = Listed(experiment.dataset.dset_root, "buffer", 1000)
    dataset.configure(40, 8, "none", False)
    loader = BatchLoader(dataset, batch_size=4, batches_per_epoch=10, workers=3, device="cpu", seed=0)

    def batches(**options: bool) -> Iterator[Any]:
        return loader.epoch(0, **options)

    waited = batches(only_files_of_now=True)
    assert len(list(dataset.dset_root.glob("listed-*"))) == 3
    for one, other in zip(list(waited), list(batches()), strict=True):
        assert torch.equal(one.rews, other.rews)
    loader.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"double_buffer": True, "env_mode": "async"}, ["overlap_collection", "double_buffer", "to False"]),
        ({"train_timesteps_per_epoch": 0}, ["overlap_collection is True", "only a learner", "to False"]),
        ({"start_collecting_at_epoch": 3}, ["only a learner", "start_collecting_at_epoch=3"]),
        ({"start_learning_at_epoch": 3}, ["only a collector", "start_learning_at_epoch=3"]),
    ],
)
def test_a_run_in_which_nothing_overlaps_is_refused(
    make_experiment: MakeExperiment, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ValueError, match="overlap_collection") as raised:
        make_experiment(**{**OVERLAP, **changes})
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("mode", ["learn", "collect"])
def test_a_process_of_its_own_role_is_refused(make_experiment: MakeExperiment, mode: str) -> None:
    experiment = switch_async_mode(make_experiment(**OVERLAP), mode)
    with pytest.raises(ValueError, match=f"overlap_collection is True, but this run is only a {mode}"):
        experiment.start()


@pytest.mark.parametrize(
    "command", [["launch"], ["train", "--mode", "learn"], ["train", "--mode", "collect"]]
)
def test_commands_with_separate_processes_refuse_it(
    tmp_path: Path, clean_gin: None, command: list[str]
) -> None:
    options = ["--run-dir", str(tmp_path), "--set", "Experiment.overlap_collection=True"]
    result = CliRunner().invoke(app, [*command, *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "overlap_collection is True, but this run is only a" in result.output
    assert not list(tmp_path.iterdir())


def test_an_experiment_of_no_epoch_may_have_it(make_experiment: MakeExperiment) -> None:
    make_experiment(**{**OVERLAP, "epochs": 0}).start()


def test_a_dataset_that_is_never_ready_collects_as_usual(make_experiment: MakeExperiment) -> None:
    class Never(DoNothingDataset):
        @property
        def ready_for_training(self) -> bool:
            return False

    order = Order()
    with pytest.warns(UserWarning, match="no update"):
        learn(make_experiment(**OVERLAP, dataset=Never(), callbacks=[order]))
    assert order.events == dict.fromkeys(range(3), 20 * "s")
