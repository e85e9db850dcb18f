"""A seed fixes a run bit for bit, and a killed run continues as if it had never stopped."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from amago.experiment import Callback, Experiment
from amago.loading import DiskTrajDataset, MixtureOfDatasets
from amago.nets.traj_encoders import GRUTrajEncoder

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]


class Killed(Exception):
    """Raised where a real process would be killed."""


class Killer(Callback):
    """Ends the run in the middle of the updates of one epoch, or of its collection."""

    def __init__(self, epoch: int, *, while_collecting: bool = False) -> None:
        self.epoch, self.while_collecting = epoch, while_collecting

    def on_batch(self, experiment: Experiment, updated: bool) -> None:
        if experiment.epoch == self.epoch and not self.while_collecting:
            raise Killed

    def on_rollout_step(self, experiment: Experiment, section: str, env_steps: int) -> None:
        if experiment.epoch == self.epoch and self.while_collecting and section == "train":
            raise Killed


def run(experiment: Experiment) -> Experiment:
    experiment.start()
    experiment.learn()
    return experiment


def run_until_killed(experiment: Experiment) -> None:
    experiment.start()
    with pytest.raises(Killed):
        experiment.learn()
    experiment.close()


def same_weights(first: Experiment, second: Experiment) -> bool:
    pairs = zip(first.policy.state_dict().items(), second.policy.state_dict().items(), strict=True)
    return all(name == other and torch.equal(a, b) for (name, a), (other, b) in pairs)


def metrics(experiment: Experiment) -> list[Any]:
    """Every line of the metrics, without times."""
    lines = (experiment.run_dir / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line) for line in lines]
    return [(line["section"], line["axes"], line["metrics"]) for line in parsed if line["section"] != "time"]


def test_the_same_seed_gives_the_same_run_bit_for_bit(make_experiment: MakeExperiment) -> None:
    torch.manual_seed(1)
    first = run(make_experiment("a"))
    torch.manual_seed(2)
    second = run(make_experiment("b"))
    assert same_weights(first, second)
    assert metrics(first) == metrics(second)
    assert not same_weights(first, run(make_experiment("c", seed=8)))


def test_loader_workers_do_not_change_the_run(make_experiment: MakeExperiment) -> None:
    assert same_weights(run(make_experiment("a")), run(make_experiment("b", dloader_workers=2)))


def test_worker_processes_for_environments_do_not_change_the_run(make_experiment: MakeExperiment) -> None:
    first = run(make_experiment("a"))
    assert same_weights(first, run(make_experiment("b", env_mode="async", envs_per_worker=2)))


def test_a_run_leaves_torchs_global_generator_alone(make_experiment: MakeExperiment) -> None:
    before = torch.get_rng_state()
    run(make_experiment(epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("while_collecting", [False, True])
def test_a_killed_run_continues_as_if_it_had_never_stopped(
    make_experiment: MakeExperiment, while_collecting: bool
) -> None:
    options = {"epochs": 6, "ckpt_interval": 2, "val_interval": 2, "traj_encoder_type": GRUTrajEncoder}
    # Episodes of 6 steps and epochs of 20: the checkpoint comes in the middle of episodes.
    unbroken = run(make_experiment("a", **options))
    killer = Killer(4, while_collecting=while_collecting)
    run_until_killed(make_experiment("b", **options, callbacks=[killer]))
    continued = run(make_experiment("b", **options, resume=True))
    assert same_weights(unbroken, continued)
    assert continued.counters == unbroken.counters
    assert metrics(unbroken)[-6:] == metrics(continued)[-6:]


def test_resume_restores_files_that_the_killed_run_deleted(make_experiment: MakeExperiment) -> None:
    """Files that the checkpoint lists were deleted by the killed run; they are brought back."""

    def make(folder: str, root: Any, **options: Any) -> Experiment:
        dataset = DiskTrajDataset(dset_root=root / folder, dset_name="buffer", dset_max_size=12)
        return make_experiment(folder, dataset=dataset, epochs=6, ckpt_interval=2, **options)

    root = make_experiment("probe").run_dir.parent.parent
    unbroken = run(make("a", root))
    run_until_killed(make("b", root, callbacks=[Killer(4)]))
    assert same_weights(unbroken, run(make("b", root, resume=True)))


def test_a_process_without_edit_rights_resumes_with_the_weights_of_a_mixture(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    def mixture() -> MixtureOfDatasets:
        return MixtureOfDatasets([DiskTrajDataset(tmp_path, "buffer", 1000)], [1.0], smooth_sudden_starts=100)

    killed = make_experiment(dataset=mixture(), ckpt_interval=1, callbacks=[Killer(1)])
    run_until_killed(killed)
    folder = killed.dataset.save_new_trajs_to
    files = sorted(folder.iterdir())
    resumed = make_experiment(dataset=mixture(), resume=True, has_dset_edit_rights=False)
    resumed.start()
    state = resumed.dataset.state_dict()
    assert (state["ready_at_start"], state["ready_since"]) == ([False], [0])
    assert sorted(folder.iterdir()) == files  # those after the checkpoint too
    # The weight is still annealed: 0 at the start, one hundredth more in every epoch.
    assert resumed.dataset.update_dset_weights(1)["buffer Current Sample Weight"] == pytest.approx(0.02)


def test_resume_does_not_repeat_the_saved_epoch(make_experiment: MakeExperiment) -> None:
    run_until_killed(make_experiment(epochs=4, ckpt_interval=2, callbacks=[Killer(3)]))
    experiment = make_experiment(epochs=4, ckpt_interval=2, resume=True)
    experiment.start()
    assert experiment.counters.epoch == 3
    assert (experiment.counters.env_steps, experiment.counters.gradient_steps) == (180, 12)


def test_resume_restores_the_exploration_schedule(make_experiment: MakeExperiment) -> None:
    run_until_killed(make_experiment(epochs=3, ckpt_interval=1, callbacks=[Killer(2)]))
    experiment = make_experiment(epochs=3, resume=True)
    experiment.start()
    states = experiment.train_envs.exploration_state()
    assert [state["global_step"] for state in states] == [40, 40, 40]


def test_resuming_without_a_checkpoint_or_with_another_seed_is_refused(
    make_experiment: MakeExperiment,
) -> None:
    with pytest.raises(FileNotFoundError, match="no training state"):
        make_experiment(resume=True).start()
    run(make_experiment(epochs=1)).close()
    with pytest.raises(ValueError, match="seed is 8, but the run to resume has seed 7"):
        make_experiment(epochs=2, seed=8, resume=True).start()


def test_a_resumed_run_without_a_seed_keeps_its_drawn_seed(make_experiment: MakeExperiment) -> None:
    run(make_experiment(epochs=1, seed=None)).close()
    first = json.loads((make_experiment().run_dir / "run.json").read_text())["seed"]
    experiment = make_experiment(epochs=2, seed=None, resume=True)
    experiment.start()
    assert json.loads((experiment.run_dir / "run.json").read_text())["seed"] == first


@pytest.mark.filterwarnings("ignore:24 of 24 trajectory files")
def test_a_checkpoint_can_be_loaded_into_a_started_experiment(make_experiment: MakeExperiment) -> None:
    first = run(make_experiment("a", epochs=2, ckpt_interval=1))
    shutil.copytree(first.run_dir, make_experiment("b").run_dir)
    second = make_experiment("b", epochs=2, resume=True)
    second.start()
    second.load_checkpoint(1)
    assert second.counters.epoch == 2
    assert same_weights(first, second)
    second.close()
    third = make_experiment("c", epochs=2)
    third.start()
    third.load_checkpoint_from_path(first.checkpointer.policy_weights(1), is_accelerate_state=False)
    assert third.counters.epoch == 0
    assert same_weights(first, third)


def test_a_missing_checkpoint_names_those_that_exist(make_experiment: MakeExperiment) -> None:
    experiment = run(make_experiment(epochs=1))
    with pytest.raises(FileNotFoundError, match="run_epoch_0"):
        experiment.load_checkpoint(9)
