"""A wrong argument is answered with its name, its value and what would do; nothing is built before that."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from amago.agent import Agent
from amago.envs.env_utils import available_cores
from amago.experiment import Experiment
from amago.experiment.run_file import read_run
from amago.loading import DiskTrajDataset, DoNothingDataset
from amago.nets.traj_encoders import FFTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

MakeExperiment = Callable[..., Experiment]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"env_mode": "asynch"}, ValueError, ["env_mode", "'asynch'", "did you mean 'async'"]),
        ({"save_trajs_as": "trajectory"}, ValueError, ["save_trajs_as", "'trajectory'", "'traj'"]),
        ({"padded_sampling": "middle"}, ValueError, ["padded_sampling", "'middle'", "'left'"]),
        ({"mixed_precision": "fp16"}, ValueError, ["mixed_precision", "'fp16'", "'bf16'"]),
        ({"compile": "yes"}, ValueError, ["compile", "'yes'", "'auto'"]),
        ({"batch_size": 0}, ValueError, ["batch_size", "0", "at least 1"]),
        ({"batch_size": 2.5}, ValueError, ["batch_size", "2.5", "integer"]),
        ({"batch_size": "4"}, TypeError, ["batch_size", "'4'", "integer"]),
        ({"epochs": -1}, ValueError, ["epochs", "-1", "at least 0"]),
        ({"epochs": float("nan")}, ValueError, ["epochs", "nan"]),
        ({"learning_rate": 0.0}, ValueError, ["learning_rate", "0.0", "above 0"]),
        ({"learning_rate": float("nan")}, ValueError, ["learning_rate", "nan"]),
        ({"seed": -1}, ValueError, ["seed", "-1"]),
        ({"val_interval": 0}, ValueError, ["val_interval", "0"]),
        ({"max_seq_len": 100, "traj_save_len": 50}, ValueError, ["traj_save_len", "50", "at least 100"]),
        ({"run_name": "a/b"}, ValueError, ["run_name", "'a/b'", "slashes"]),
        ({"run_name": ""}, ValueError, ["run_name"]),
        ({"dataset": None}, ValueError, ["dataset", "DiskTrajDataset", "dset_root"]),
        ({"dataset": "folder"}, TypeError, ["dataset", "'folder'", "RLDataset"]),
        ({"agent_type": "agent"}, TypeError, ["agent_type", "'agent'", "BaseAgent"]),
        ({"agent_type": FFTrajEncoder}, TypeError, ["agent_type", "FFTrajEncoder", "BaseAgent"]),
        ({"traj_encoder_type": FFTstepEncoder}, TypeError, ["traj_encoder_type", "FFTstepEncoder"]),
        ({"tstep_encoder_type": FFTrajEncoder}, TypeError, ["tstep_encoder_type", "FFTrajEncoder"]),
        ({"exploration_wrapper_type": Agent}, TypeError, ["exploration_wrapper_type", "ExplorationWrapper"]),
        ({"callbacks": [print]}, TypeError, ["callbacks", "print", "Callback"]),
        ({"callbacks": print}, TypeError, ["callbacks", "print", "Callback"]),
        ({"make_train_env": [None, None, None]}, TypeError, ["make_train_env", "AMAGOEnv"]),
        ({"make_val_env": [lambda: None]}, ValueError, ["make_val_env", "list of 1", "must have 3"]),
        ({"ckpt_base_dir": None}, ValueError, ["ckpt_base_dir"]),
    ],
)
def test_a_wrong_argument_is_named(
    make_experiment: MakeExperiment, changes: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as raised:
        make_experiment(**changes)
    for word in words:
        assert word in str(raised.value)


def test_missing_arguments_are_listed() -> None:
    with pytest.raises(TypeError, match=r"max_seq_len, .*agent_type.*make_val_env"):
        Experiment(run_name="run", ckpt_base_dir="base")


def test_an_unknown_argument_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(TypeError, match="Experiment has no argument 'batchsize': did you mean 'batch_size'"):
        make_experiment(batchsize=3)


@pytest.mark.parametrize(
    "name", ["epochs", "start_learning_at_epoch", "start_collecting_at_epoch", "traj_save_len"]
)
def test_infinity_is_allowed_where_it_means_never_or_for_ever(
    make_experiment: MakeExperiment, name: str
) -> None:
    assert getattr(make_experiment(**{name: float("inf")}), name) == float("inf")


def test_the_constructor_builds_nothing(make_experiment: MakeExperiment) -> None:
    def never() -> Any:
        raise AssertionError("an environment was made")

    experiment = make_experiment(make_train_env=never, make_val_env=never)
    assert not experiment.run_dir.exists()


def test_a_list_gives_every_actor_its_own_environment(make_experiment: MakeExperiment) -> None:
    maker = make_experiment().make_train_env
    made: list[int] = []

    def numbered(number: int) -> Callable[[], Any]:
        def make() -> Any:
            made.append(number)
            return maker()

        return make

    experiment = make_experiment(make_train_env=[numbered(i) for i in range(3)])
    experiment.start()
    assert made == [0, 1, 2]


def test_the_older_arguments_of_a_dataset_make_one(make_experiment: MakeExperiment, tmp_path: Any) -> None:
    experiment = make_experiment(
        ckpt_base_dir=None, dset_root=tmp_path, dset_name="shared", dset_max_size=5, epochs=1
    )
    experiment.start()
    experiment.learn()
    assert isinstance(experiment.dataset, DiskTrajDataset)
    assert experiment.dataset.dset_max_size == 5
    assert len(list((tmp_path / "shared" / "buffer" / "fifo").iterdir())) > 0
    assert (tmp_path / "shared" / "run" / "ckpts" / "latest" / "policy.pt").is_file()


@pytest.mark.parametrize("given", [{"dset_root": "here", "dset_name": "shared"}, {"dset_max_size": 5}])
def test_a_dataset_and_the_arguments_of_another_are_refused(
    make_experiment: MakeExperiment, tmp_path: Any, given: dict[str, Any]
) -> None:
    dataset = DiskTrajDataset(tmp_path, "own", 10)
    with pytest.raises(
        ValueError, match=f"dataset is given, and so is {next(iter(given))}=.* would be ignored"
    ):
        make_experiment(dataset=dataset, **given)


def test_a_run_with_its_own_dataset_is_built_again_with_that_or_with_another(
    make_experiment: MakeExperiment, tmp_path: Any
) -> None:
    experiment = make_experiment(ckpt_base_dir=None, dset_root=tmp_path, dset_name="shared", dset_max_size=5)
    experiment.start()
    record = read_run(experiment.run_dir)
    again = Experiment(**record.experiment_arguments())
    assert (again.dset_name, again.dset_max_size, again.run_dir) == ("shared", 5, experiment.run_dir)
    other = Experiment(**record.experiment_arguments(dataset=DoNothingDataset()))
    assert (other.dset_name, other.run_dir) == (None, experiment.run_dir)


def test_no_more_loader_workers_are_started_than_there_are_cores(
    make_experiment: MakeExperiment, recwarn: pytest.WarningsRecorder
) -> None:
    cores = available_cores()
    experiment = make_experiment(dloader_workers=cores + 3, epochs=1)
    experiment.start()
    experiment.learn()
    assert experiment.counters.gradient_steps == 4
    assert not [warning for warning in recwarn if "worker" in str(warning.message)]
    # A loader that starts as many as it is told to warns.
    with pytest.warns(UserWarning, match="suggested max number of worker"):
        torch.utils.data.DataLoader([0], num_workers=cores + 3)


def test_a_float_save_length_is_a_whole_number_of_steps(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(traj_save_len=9.0, epochs=1, max_seq_len=4)
    experiment.start()
    experiment.learn()
    assert experiment.counters.gradient_steps == 4


def test_rows_that_differ_from_parallel_actors_are_refused(make_experiment: MakeExperiment) -> None:
    maker = make_experiment().make_train_env
    experiment = make_experiment(env_mode="already_vectorized", make_train_env=maker, make_val_env=maker)
    with pytest.raises(ValueError, match=r"parallel_actors is 3.*1 rows"):
        experiment.start()


def test_what_needs_start_says_so(make_experiment: MakeExperiment) -> None:
    with pytest.raises(RuntimeError, match=r"call start\(\) before learn\(\)"):
        make_experiment().learn()


def test_starting_twice_is_refused(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    experiment.start()
    with pytest.raises(RuntimeError, match="started already"):
        experiment.start()
