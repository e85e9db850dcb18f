"""run.json holds what a run is rebuilt from; config.txt shows the same to people."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import pytest

from amago.cli_utils import use_config
from amago.envs.exploration import EpsilonGreedy
from amago.experiment import Experiment
from amago.experiment.gin_config import (
    NotWritableError,
    bind,
    bindings_as_json,
    decode,
    encode,
    import_path,
)
from amago.experiment.run_json import read_run
from amago.experiment.trusted import trusting
from amago.nets.cnn import GridworldCNN, IMPALAishCNN
from amago.nets.tstep_encoders import CNNTstepEncoder, MultiModalTstepEncoder

MakeExperiment = Callable[..., Experiment]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.25,
        "text with = and\na second line",
        [1, [2.5, "x"]],
        (1, 2),
        {"a": (1,), 2: None},
        float("inf"),
        IMPALAishCNN,
        [EpsilonGreedy, json.dumps],
    ],
)
def test_values_are_restored_from_json(value: Any) -> None:
    with trusting("json"):
        assert decode(json.loads(json.dumps(encode(value), allow_nan=False))) == value


def test_a_partial_is_restored_from_json() -> None:
    with trusting("json"):
        again = decode(json.loads(json.dumps(encode(functools.partial(json.dumps, [1], indent=1)))))
    assert again() == json.dumps([1], indent=1)


@pytest.mark.parametrize(
    ("value", "why"),
    [(lambda: 0, "a lambda"), (object(), "no import path"), ([lambda: 0], "a lambda")],
)
def test_values_that_json_cannot_hold_are_rejected_with_a_reason(value: Any, why: str) -> None:
    with pytest.raises(NotWritableError, match=why):
        encode(value)


def test_a_function_inside_a_function_has_no_import_path() -> None:
    def local() -> None: ...

    with pytest.raises(NotWritableError, match="local to a function"):
        import_path(local)


def test_gin_bindings_are_restored_including_classes(clean_gin: None, tmp_path: Path) -> None:
    path = tmp_path / "own.gin"
    path.write_text("CNNTstepEncoder.activation = 'relu'\nscope/Agent.critic_type = @NCritics\n")
    use_config({"CNNTstepEncoder.cnn_type": IMPALAishCNN, "Agent.gamma": 0.5}, gin_configs=[path])
    written, unwritable = bindings_as_json()
    text = json.dumps(written)
    gin.clear_config()
    bind(json.loads(text))
    assert unwritable == {}
    assert gin.get_bindings(CNNTstepEncoder) == {"cnn_type": IMPALAishCNN, "activation": "relu"}
    assert gin.query_parameter("Agent.gamma") == 0.5
    assert bindings_as_json()[0] == json.loads(text)


def test_gin_references_inside_a_dictionary_keep_their_scopes(clean_gin: None, tmp_path: Path) -> None:
    path = tmp_path / "own.gin"
    path.write_text(
        'MultiModalTstepEncoder.encoders = {"back": @rear/ImageFeatures, "up": @GridworldCNN, "debug": "ignore"}\n'
        "rear/ImageFeatures.d_output = 8\n"
    )
    use_config({}, gin_configs=[path])
    text = json.dumps(bindings_as_json()[0])
    gin.clear_config()
    bind(json.loads(text))
    shape = (40, 40, 3)
    space = {"front": shape, "back": shape, "up": shape, "debug": (2,)}
    parts = MultiModalTstepEncoder(obs_space=space, rl2_space=(3,)).obs_encoders
    widths = {name: part.emb_dim for name, part in parts.items()}
    assert widths == {"back_encoder": 8, "front_encoder": 256, "up_encoder": 256}
    assert isinstance(parts["up_encoder"].cnn, GridworldCNN)


def test_run_json_names_versions_specs_classes_and_seed(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(env_description={"id": "memory", "args": {"horizon": 6}})
    experiment.start()
    record = read_run(experiment.run_dir)
    assert record.seed == 7
    assert {"amago-runner", "torch", "python"} <= set(record.packages)
    assert record.environment == {"id": "memory", "args": {"horizon": 6}}
    assert record.env_names == sorted(set(experiment.val_envs.env_names))
    assert record.specs["observation"] == {"observation": {"shape": [3], "dtype": "float32"}}
    assert record.specs["action"] == {"kind": "discrete", "sizes": [2], "low": None, "high": None}
    assert record.arguments["agent_type"] == {"import": "amago.agent.agent:Agent"}
    assert record.arguments["max_seq_len"] == 8
    assert record.gin["amago.nets.actor_critic.Actor.d_hidden"] == 8


def test_a_run_is_rebuilt_from_run_json(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(epochs=1)
    experiment.start()
    experiment.learn()
    metrics = experiment.evaluate_test(experiment.make_val_env, episodes=6)
    experiment.close()
    gin.clear_config()
    record = read_run(experiment.run_dir)
    record.bind_gin()
    makers = {"make_train_env": experiment.make_train_env, "make_val_env": experiment.make_val_env}
    again = Experiment(**record.experiment_arguments(**makers, verbose=False, resume=True))
    again.start()
    assert again.evaluate_test(again.make_val_env, episodes=6) == metrics
    again.close()


def test_an_argument_that_run_json_lacks_must_be_passed(make_experiment: MakeExperiment) -> None:
    maker = make_experiment().make_train_env
    experiment = make_experiment(make_train_env=lambda: maker())
    experiment.start()
    record = read_run(experiment.run_dir)
    with pytest.raises(ValueError, match="make_train_env: a lambda"):
        record.experiment_arguments()
    with trusting(maker.__module__):
        assert record.experiment_arguments(make_train_env=maker)["make_train_env"] is maker


def test_a_gin_binding_that_run_json_lacks_must_be_bound(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(start_learning_at_epoch=1)
    use_config({"Agent.fbc_filter_func": lambda adv: adv > 0})
    experiment.start()
    record = read_run(experiment.run_dir)
    gin.clear_config()
    with pytest.raises(ValueError, match=r"amago\.agent\.Agent\.fbc_filter_func: a lambda"):
        record.bind_gin()
    use_config({"Agent.fbc_filter_func": lambda adv: adv > 1})
    record.bind_gin()


def test_reading_a_folder_without_run_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run\.json"):
        read_run(tmp_path)


def test_config_txt_shows_bindings_arguments_and_defaults(make_experiment: MakeExperiment) -> None:
    use_config({"FFTstepEncoder.activation": "relu", "Agent.reward_multiplier": 2.0})
    experiment = make_experiment(learning_rate=0.125, wandb_group_name="a=b\nc")
    experiment.start()
    text = (experiment.run_dir / "config.txt").read_text()
    assert 'amago.nets.tstep_encoders.FFTstepEncoder.activation = "relu"' in text
    assert "learning_rate = 0.125" in text
    assert r'wandb_group_name = "a=b\nc"' in text.splitlines()
    assert 'agent_type = {"import": "amago.agent.agent:Agent"}' in text
    assert "Agent.tau = 0.003" in text
