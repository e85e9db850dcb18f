"""Helpers of training scripts: gin settings, classes by name, common options, asynchronous modes."""

import math
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import pytest

from amago import TrajEncoder, register_traj_encoder
from amago.agent import Agent
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_async_mode,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs.exploration import BilevelEpsilonGreedy, EpsilonGreedy
from amago.experiment import Experiment
from amago.nets.cnn import IMPALAishCNN
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder, get_traj_encoder_cls
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder

MakeExperiment = Callable[..., Experiment]

pytestmark = pytest.mark.usefixtures("clean_gin")


@pytest.mark.parametrize(
    "key",
    [
        "amago.nets.traj_encoders.TformerTrajEncoder.d_model",
        "traj_encoders.TformerTrajEncoder.d_model",
        "TformerTrajEncoder.d_model",
    ],
)
def test_full_partial_and_short_selectors_bind_the_same_value(key: str) -> None:
    use_config({key: 24})
    assert gin.query_parameter("TformerTrajEncoder.d_model") == 24


def test_gin_files_override_the_dictionary_and_later_files_earlier_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "first.gin", tmp_path / "second.gin"
    first.write_text("Agent.gamma = 0.5\nAgent.tau = 0.5\n")
    second.write_text("Agent.gamma = 0.25\n")
    use_config(
        {"Agent.gamma": 0.9, "Agent.tau": 0.9, "Agent.num_critics": 7}, gin_configs=[str(first), str(second)]
    )
    assert gin.get_bindings("Agent") == {"gamma": 0.25, "tau": 0.5, "num_critics": 7}


def test_use_config_locks_gin_and_keeps_earlier_bindings() -> None:
    use_config({"Agent.gamma": 0.9}, finalize=False)
    assert not gin.config_is_locked()
    use_config({"Agent.gamma": 0.8})
    assert gin.config_is_locked()
    use_config({"Agent.tau": 0.1})
    assert gin.get_bindings("Agent") == {"gamma": 0.8, "tau": 0.1}
    with pytest.raises(ValueError, match="gama"):
        use_config({"Agent.gama": 1})
    assert gin.config_is_locked()


def test_a_gin_file_can_name_classes_that_are_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "cnn.gin"
    path.write_text(
        "CNNTstepEncoder.cnn_type = @IMPALAishCNN\nIMPALAishCNN.cnn_block_depths = [32, 64, 64]\n"
    )
    use_config({}, gin_configs=[path])
    assert gin.get_bindings("CNNTstepEncoder")["cnn_type"] is IMPALAishCNN


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("TformerTrajEncodr.d_model", "Did you mean 'TformerTrajEncoder'"),
        ("Agent.gama", "Did you mean 'gamma'"),
        (
            "amago.nets.traj_encoder.GRUTrajEncoder.n_layers",
            "Did you mean 'amago.nets.traj_encoders.GRUTrajEncoder'",
        ),
    ],
)
def test_a_mistyped_name_suggests_the_most_similar(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        use_config({key: 1})


def test_a_mistyped_name_in_a_file_suggests_the_most_similar(tmp_path: Path) -> None:
    path = tmp_path / "wrong.gin"
    path.write_text("Agent.gama = 0.9\n")
    with pytest.raises(ValueError, match=r"(?s)Did you mean 'gamma'.*wrong\.gin"):
        use_config({}, gin_configs=[path])


def test_wrong_arguments_are_explained() -> None:
    with pytest.raises(ValueError, match=r"Selector\.parameter"):
        use_config({"Agent": 1})
    with pytest.raises(FileNotFoundError, match=r"nowhere\.gin"):
        use_config({}, gin_configs=["nowhere.gin"])
    with pytest.raises(TypeError, match="must be a list"):
        use_config({}, gin_configs="one.gin")


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("transformer", {"d_model": 64, "d_ff": 256, "n_layers": 2}),
        ("rnn", {"d_hidden": 64, "d_output": 64, "n_layers": 2}),
        ("mamba", {"d_model": 64, "n_layers": 2}),
        ("ff", {"d_model": 64, "n_layers": 2}),
        ("identity", {}),
    ],
)
def test_the_sizes_of_trajectory_encoders(arch: str, expected: dict[str, int]) -> None:
    config: dict[str, Any] = {}
    cls = switch_traj_encoder(config, arch=arch, memory_size=64, layers=2)
    assert {key.rpartition(".")[2]: value for key, value in config.items()} == expected
    assert cls is get_traj_encoder_cls(arch)
    use_config(config)


def test_arguments_of_an_encoder_override_its_sizes() -> None:
    config: dict[str, Any] = {}
    assert switch_traj_encoder(config, arch="transformer", n_heads=16) is TformerTrajEncoder
    assert config == {"amago.nets.traj_encoders.TformerTrajEncoder.n_heads": 16}
    switch_traj_encoder(config, "transformer", 64, 2, d_ff=100)
    assert config["amago.nets.traj_encoders.TformerTrajEncoder.d_ff"] == 100


@pytest.fixture(scope="module")
def own_encoder() -> Iterator[type[TrajEncoder]]:
    """An encoder as users register them; names stay taken for the rest of the session."""

    @register_traj_encoder("tests_own")
    @gin.configurable(module="tests_own")
    class OwnEncoder(TrajEncoder):
        def __init__(self, tstep_dim: int, max_seq_len: int, memory_size: int = 1, extra: int = 2) -> None:
            super().__init__(tstep_dim, max_seq_len)

        @property
        def emb_dim(self) -> int:
            return 1

    return OwnEncoder


def test_a_custom_encoder_receives_the_sizes_that_it_accepts(own_encoder: type[TrajEncoder]) -> None:
    config: dict[str, Any] = {}
    assert switch_traj_encoder(config, "tests_own", memory_size=5, layers=3, extra=4) is own_encoder
    assert config == {"tests_own.OwnEncoder.memory_size": 5, "tests_own.OwnEncoder.extra": 4}


def test_classes_are_chosen_by_name() -> None:
    config: dict[str, Any] = {}
    assert switch_tstep_encoder(config, arch="cnn", cnn_type=IMPALAishCNN) is CNNTstepEncoder
    assert switch_agent(config, agent="agent", num_critics=6, gamma=0.998) is Agent
    assert switch_exploration(config, strategy="egreedy", eps_start=0.5) is EpsilonGreedy
    assert switch_exploration(config, strategy="bilevel", rollout_horizon=10) is BilevelEpsilonGreedy
    assert config == {
        "amago.nets.tstep_encoders.CNNTstepEncoder.cnn_type": IMPALAishCNN,
        "amago.agent.Agent.num_critics": 6,
        "amago.agent.Agent.gamma": 0.998,
        "amago.envs.exploration.EpsilonGreedy.eps_start": 0.5,
        "amago.envs.exploration.BilevelEpsilonGreedy.rollout_horizon": 10,
    }
    use_config(config)


def test_mistyped_names_and_arguments_suggest_the_most_similar() -> None:
    with pytest.raises(ValueError, match="Did you mean 'transformer'"):
        switch_traj_encoder({}, "transfomer")
    with pytest.raises(ValueError, match="Did you mean 'num_critics'"):
        switch_agent({}, "agent", num_critic=3)


def test_defaults_of_the_common_options() -> None:
    parser = add_common_cli(ArgumentParser())
    with pytest.raises(SystemExit):
        parser.parse_args(["--run_name", "r"])
    options = vars(parser.parse_args(["--run_name", "r", "--buffer_dir", "b"]))
    expected = {
        "configs": None,
        "trials": 1,
        "agent_type": "agent",
        "env_mode": "async",
        "no_log": False,
        "ckpt": None,
        "run_name": "r",
        "epochs": 1000,
        "buffer_dir": "b",
        "traj_encoder": "transformer",
        "memory_size": 256,
        "memory_layers": 3,
        "batches_per_epoch": 1000,
        "timesteps_per_epoch": 1000,
        "val_interval": 20,
        "ckpt_interval": 50,
        "parallel_actors": 12,
        "dset_max_size": 20_000,
        "start_learning_at_epoch": 0,
        "mixed_precision": "no",
        "dloader_workers": 8,
        "batch_size": 24,
        "mode": "both",
    }
    assert expected.items() <= options.items()


def test_a_star_import_brings_registries_base_classes_and_exploration() -> None:
    names: dict[str, Any] = {}
    exec("from amago.cli_utils import *", names)
    for kind in ("agent", "exploration", "traj_encoder", "tstep_encoder"):
        assert {f"get_{kind}_cls", f"list_registered_{kind}s"} <= names.keys()
    assert {"Agent", "MultiTaskAgent", "TrajEncoder", "TstepEncoder", "Experiment"} <= names.keys()
    assert {"ExplorationWrapper", "EpsilonGreedy", "BilevelEpsilonGreedy"} <= names.keys()


def test_an_experiment_follows_the_options_and_trains(
    tmp_path: Path, make_experiment: MakeExperiment
) -> None:
    sizes = "--epochs 3 --batches_per_epoch 2 --timesteps_per_epoch 20 --parallel_actors 2 --batch_size 2"
    workers = "--env_mode sync --dloader_workers 0 --no_log"
    maker = make_experiment().make_train_env
    experiment = create_experiment_from_cli(
        add_common_cli(ArgumentParser()).parse_args(
            ["--run_name", "r", "--buffer_dir", str(tmp_path), *sizes.split(), *workers.split()]
        ),
        make_train_env=maker,
        make_val_env=maker,
        max_seq_len=8,
        group_name="group",
        run_name="r_trial_0",
        agent_type=Agent,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder,
        val_timesteps_per_epoch=12,
        verbose=False,
        epochs=1,
    )
    assert (experiment.epochs, experiment.train_batches_per_epoch, experiment.parallel_actors) == (1, 2, 2)
    assert experiment.wandb_group_name == "group"
    assert not experiment.log_to_wandb
    assert experiment.traj_save_len == 1e10
    assert experiment.run_dir == tmp_path / "r_trial_0"
    assert experiment.dataset.save_new_trajs_to == tmp_path / "r_trial_0" / "buffer" / "fifo"
    experiment.start()
    experiment.learn()
    experiment.close()
    assert experiment.counters.gradient_steps == 2


def test_modes_of_collectors_and_learners(make_experiment: MakeExperiment) -> None:
    collector = switch_async_mode(make_experiment(), "collect")
    assert (collector.epochs, collector.start_learning_at_epoch) == (math.inf, math.inf)
    assert collector.ckpt_interval is None
    assert (collector.always_load_latest, collector.always_save_latest) == (True, False)
    assert not collector.has_dset_edit_rights
    learner = switch_async_mode(make_experiment(), "learn")
    assert learner.start_collecting_at_epoch == math.inf
    assert learner.val_interval is None
    assert (learner.always_load_latest, learner.always_save_latest) == (False, True)
    both = make_experiment()
    before = dict(vars(both))
    assert vars(switch_async_mode(both, "both")) == before
    with pytest.raises(ValueError, match="Did you mean 'learn'"):
        switch_async_mode(make_experiment(), "lern")
