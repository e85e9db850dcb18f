"""Invalid arguments are rejected with their name, value and accepted values, before anything is created."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest

from amago.agent import Agent
from amago.envs.env_utils import available_cores
from amago.envs.exploration import EpsilonGreedy
from amago.experiment import Experiment
from amago.experiment.run_json import read_run
from amago.experiment.trusted import trusting
from amago.loading import DiskTrajDataset, DoNothingDataset
from amago.nets.traj_encoders import FFTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

MakeExperiment = Callable[..., Experiment]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"env_mode": "asynch"}, ValueError, ["env_mode", "'asynch'", "Did you mean 'async'"]),
        ({"save_trajs_as": "trajectory"}, ValueError, ["save_trajs_as", "'trajectory'", "'traj'"]),
        ({"compile": "yes"}, ValueError, ["compile", "'yes'", "'auto'"]),
        ({"resume": "no"}, ValueError, ["resume", "'no'", "True or False or 'auto'"]),
        ({"double_buffer": True, "env_mode": "sync"}, ValueError, ["double_buffer", "env_mode='async'"]),
        ({"batch_size": 0}, ValueError, ["batch_size", "0", "at least 1"]),
        ({"batch_size": 2.5}, TypeError, ["batch_size", "2.5", "whole number"]),
        ({"batch_size": "4"}, TypeError, ["batch_size", "'4'", "whole number"]),
        ({"epochs": float("nan")}, ValueError, ["epochs", "nan"]),
        ({"val_interval": 0}, ValueError, ["val_interval", "0"]),
        ({"learning_rate": 0.0}, ValueError, ["learning_rate", "0.0", "above 0"]),
        ({"learning_rate": float("inf")}, ValueError, ["learning_rate", "inf", "finite"]),
        ({"l2_coeff": float("nan")}, ValueError, ["l2_coeff", "nan"]),
        ({"grad_clip": "1"}, TypeError, ["grad_clip", "'1'", "number"]),
        ({"seed": -1}, ValueError, ["seed", "-1"]),
        ({"max_seq_len": 100, "traj_save_len": 50}, ValueError, ["traj_save_len", "50", "at least 100"]),
        ({"run_name": "a/b"}, ValueError, ["run_name", "'a/b'", "slashes"]),
        ({"run_name": ""}, ValueError, ["run_name"]),
        ({"ckpt_base_dir": None}, ValueError, ["ckpt_base_dir"]),
        ({"dataset": None}, ValueError, ["dataset", "DiskTrajDataset", "dset_root"]),
        ({"batch_size": 10**12}, ValueError, ["batch_size", "1000000000000", "at most 1048576"]),
        ({"learning_rate": float("nan")}, ValueError, ["learning_rate", "nan"]),
        ({"has_dset_edit_rights": "no"}, TypeError, ["has_dset_edit_rights", "'no'", "True or False"]),
        (
            {"val_timesteps_per_epoch": 0},
            ValueError,
            ["val_timesteps_per_epoch is 0", "val_interval 20", "None"],
        ),
        ({"dset_root": "data"}, ValueError, ["dataset and dset_root='data' are both given"]),
        ({"dataset": "folder"}, TypeError, ["dataset", "'folder'", "RLDataset"]),
        ({"dataset": DiskTrajDataset}, TypeError, ["dataset", "DiskTrajDataset", "instance"]),
        ({"dset_max_size": 5}, ValueError, ["dataset and dset_max_size=5 are both given"]),
        ({"agent_type": "agent"}, TypeError, ["agent_type", "'agent'", "BaseAgent"]),
        ({"agent_type": FFTrajEncoder}, TypeError, ["agent_type", "FFTrajEncoder", "BaseAgent"]),
        ({"tstep_encoder_type": FFTrajEncoder}, TypeError, ["tstep_encoder_type", "FFTrajEncoder"]),
        ({"traj_encoder_type": FFTrajEncoder(4, 8)}, TypeError, ["traj_encoder_type", "not an instance"]),
        ({"exploration_wrapper_type": Agent}, TypeError, ["exploration_wrapper_type", "ExplorationWrapper"]),
        ({"callbacks": [print]}, TypeError, ["callbacks", "print", "Callback"]),
        ({"make_train_env": [None, None, None]}, TypeError, ["make_train_env", "AMAGOEnv"]),
        ({"make_val_env": [lambda: None]}, ValueError, ["make_val_env", "list of 1", "must have 3"]),
    ],
)
def test_an_invalid_argument_is_named(
    make_experiment: MakeExperiment,
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[Exception],
    words: list[str],
) -> None:
    with pytest.raises(error) as raised:
        make_experiment(**{"dataset": DiskTrajDataset(tmp_path, "own", 10), **changes})
    for word in words:
        assert word in str(raised.value)


def test_missing_and_unknown_arguments_are_named(make_experiment: MakeExperiment) -> None:
    with pytest.raises(TypeError, match=r"max_seq_len, .*agent_type.*make_val_env"):
        Experiment(run_name="run", ckpt_base_dir="base")
    with pytest.raises(TypeError, match=r"Experiment has no argument 'batchsize'.*Did you mean 'batch_size'"):
        make_experiment(batchsize=3)


@pytest.mark.parametrize(
    "name", ["epochs", "start_learning_at_epoch", "start_collecting_at_epoch", "traj_save_len"]
)
def test_infinite_arguments_are_accepted(make_experiment: MakeExperiment, name: str) -> None:
    assert getattr(make_experiment(**{name: float("inf")}), name) == float("inf")


def test_the_constructor_creates_nothing(make_experiment: MakeExperiment) -> None:
    def never() -> Any:
        raise AssertionError("an environment was made")

    experiment = make_experiment(make_train_env=never, make_val_env=never)
    assert not experiment.run_dir.exists()


def test_arguments_can_be_edited_until_start_and_are_checked_then(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=5)
    experiment.env_mode = "asinc"
    with pytest.raises(ValueError, match="Did you mean 'async'"):
        experiment.start()
    experiment.env_mode, experiment.epochs = "sync", 1
    experiment.start()
    experiment.learn()
    assert experiment.epoch == 1


def test_classes_may_be_partials_or_functions(make_experiment: MakeExperiment) -> None:
    def make_agent(**arguments: Any) -> Agent:
        return Agent(**arguments, num_critics=3)

    experiment = make_experiment(
        epochs=1,
        agent_type=make_agent,
        tstep_encoder_type=functools.partial(FFTstepEncoder, n_layers=2),
        traj_encoder_type=lambda **arguments: FFTrajEncoder(**arguments, d_model=12),
        exploration_wrapper_type=functools.partial(EpsilonGreedy, eps_start=0.5),
    )
    experiment.start()
    experiment.learn()
    assert experiment.policy.num_critics == 3
    assert experiment.policy.traj_encoder.emb_dim == 12


@gin.configurable
class ConfiguredExperiment(Experiment):
    """A subclass that gets required arguments from gin."""


def test_a_configurable_subclass_gets_required_arguments_from_gin(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    gin.bind_parameter("ConfiguredExperiment.max_seq_len", 5)
    gin.bind_parameter("ConfiguredExperiment.agent_type", Agent)
    maker = make_experiment().make_train_env
    experiment = ConfiguredExperiment(
        run_name="run",
        ckpt_base_dir=tmp_path,
        dataset=DoNothingDataset(),
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=FFTrajEncoder,
        val_timesteps_per_epoch=5,
        make_train_env=maker,
        make_val_env=maker,
    )
    assert (experiment.max_seq_len, experiment.agent_type) == (5, Agent)


def test_a_list_of_functions_creates_one_environment_per_actor(make_experiment: MakeExperiment) -> None:
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


def test_dset_arguments_create_a_dataset_and_are_restored_from_run_json(
    make_experiment: MakeExperiment, tmp_path: Any
) -> None:
    experiment = make_experiment(
        ckpt_base_dir=None, dset_root=tmp_path, dset_name="shared", dset_max_size=5, epochs=1
    )
    experiment.start()
    experiment.learn()
    assert isinstance(experiment.dataset, DiskTrajDataset)
    assert experiment.dataset.dset_max_size == 5
    assert len(list((tmp_path / "shared" / "buffer" / "fifo").iterdir())) > 0
    assert (tmp_path / "shared" / "run" / "ckpts" / "latest" / "policy.pt").is_file()
    record = read_run(experiment.run_dir)
    with trusting("tests"):
        arguments = record.experiment_arguments()
        others = record.experiment_arguments(dataset=DoNothingDataset())
    again = Experiment(**arguments)
    assert (again.dset_name, again.dset_max_size, again.run_dir) == ("shared", 5, experiment.run_dir)
    other = Experiment(**others)
    assert (other.dset_name, other.run_dir) == (None, experiment.run_dir)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_on_one_machine_share_its_cores(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    cores = available_cores()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert available_cores() == max(1, cores // ranks)
    experiment = make_experiment(dloader_workers=cores + 3, epochs=1)
    experiment.start()
    assert experiment.train_dloader.workers == max(1, cores // ranks)


def test_environments_with_another_number_of_rows_are_rejected(make_experiment: MakeExperiment) -> None:
    maker = make_experiment().make_train_env
    experiment = make_experiment(env_mode="already_vectorized", make_train_env=maker, make_val_env=maker)
    with pytest.raises(
        ValueError, match=r"parallel_actors=3 rows by itself, but this one steps a single row"
    ):
        experiment.start()


def test_learning_before_start_and_starting_twice_are_errors(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment()
    with pytest.raises(RuntimeError, match=r"call start\(\) before learn\(\)"):
        experiment.learn()
    experiment.start()
    with pytest.raises(RuntimeError, match="already started"):
        experiment.start()
