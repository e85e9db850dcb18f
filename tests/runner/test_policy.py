"""Policy: it acts as the run's Experiment does in evaluations, for one stream or many, from run.json alone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import pytest
import torch
from tests.runner.policy_runs import (
    CONTEXT,
    EPISODE,
    RUNS,
    UNEVEN,
    VECTOR,
    Made,
    as_batch,
    trained,
)

import amago
from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.experiment import Experiment
from amago.experiment.trusted import UntrustedNameError
from amago.nets.tstep_encoders import FFTstepEncoder
from amago.policy import Policy


def evaluation_log(experiment: Experiment, make_env: Callable[[], AMAGOEnv]) -> list[list[Any]]:
    """What the environments of an evaluation of two and a half episodes noted, a list for each actor."""
    made: list[AMAGOEnv] = []

    def remember() -> AMAGOEnv:
        made.append(make_env())
        return made[-1]

    experiment.evaluate_test(remember, timesteps=EPISODE * 5 // 2)
    return [env.unwrapped.log for env in made]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RUNS)
def test_its_actions_are_those_of_an_evaluation(name: str, make_experiment: Made) -> None:
    """Three streams, over two episode ends, and longer than the Transformer's context."""
    experiment = trained(make_experiment, name)
    logs = evaluation_log(experiment, RUNS[name][0])
    gin.clear_config()
    policy = Policy.load(experiment.run_dir)
    for rows in zip(*logs, strict=True):
        obs, rewards, dones, actions = (list(column) for column in zip(*rows, strict=True))
        acted = policy.act(as_batch(obs), rewards, dones)
        np.testing.assert_array_equal(acted, as_batch(actions))
        assert acted.dtype == np.asarray(actions[0]).dtype
    assert len({np.asarray(action).tobytes() for *_, action in logs[0]}) > 1  # not a constant policy


@pytest.mark.parametrize("name", RUNS)
def test_a_single_stream_takes_and_returns_no_batch_axis(name: str, make_experiment: Made) -> None:
    experiment = trained(make_experiment, name, parallel_actors=1)
    (log,) = evaluation_log(experiment, RUNS[name][0])
    policy, alone = Policy.load(experiment.run_dir), Policy.load(experiment.run_dir)
    for obs, reward, done, action in log:
        acted = policy.act(obs, reward, done)
        assert type(acted) is type(action)
        np.testing.assert_array_equal(acted, action)
        np.testing.assert_array_equal(alone.act(as_batch([obs]), [reward], [done]), np.asarray(action)[None])


def test_rows_are_reset_alone_and_all_of_them_for_another_number(make_experiment: Made) -> None:
    policy = Policy.load(trained(make_experiment, "box-transformer").run_dir)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (30, 4, 3)).astype(np.float32)
    rewards = rng.normal(size=(30, 4))
    first = [policy.act(obs[t], rewards[t]) for t in range(12)]
    policy.reset([1, 3])
    later = [policy.act(obs[t], rewards[t]) for t in range(12)]
    np.testing.assert_array_equal([a[[1, 3]] for a in later], [a[[1, 3]] for a in first])
    assert not np.array_equal([a[[0, 2]] for a in later], [a[[0, 2]] for a in first])
    with pytest.raises(
        ValueError, match=r"obs is a batch of 2, and before it was a batch of 4: call reset\(\)"
    ):
        policy.act(obs[0, :2], rewards[0, :2])
    policy.reset()
    assert policy.rows is None
    np.testing.assert_allclose(
        [policy.act(obs[t, :2], rewards[t, :2]) for t in range(12)],
        [a[:2] for a in first],
        rtol=1e-5,
        atol=1e-6,
    )
    assert policy.rows == 2
    policy.reset()
    assert policy.act(obs[0, 0]).shape == (1, 2)


def test_it_samples_when_asked_to(make_experiment: Made) -> None:
    policy = Policy.load(trained(make_experiment, "discrete-gru", sharpened=1.0).run_dir)
    obs = np.zeros((400, 3), np.float32)
    assert len(set(policy.act(obs).tolist())) == 1
    policy.reset()
    assert set(policy.act(obs, sample=True).tolist()) == {3, 4, 5, 6, 7}


def test_checkpoints_are_chosen_by_epoch(make_experiment: Made) -> None:
    experiment = trained(make_experiment, "discrete-gru", ckpt_interval=1, sharpened=1.0)
    early = Policy.load(experiment.run_dir, checkpoint=0).agent.state_dict()
    late = Policy.load(experiment.run_dir, checkpoint=1).agent.state_dict()
    assert not all(torch.equal(early[name], late[name]) for name in early)
    assert all(torch.equal(late[name], weight) for name, weight in experiment.policy.state_dict().items())
    with pytest.raises(FileNotFoundError, match="epochs with a checkpoint: 0, 1"):
        Policy.load(experiment.run_dir, checkpoint=7)
    with pytest.raises(ValueError, match="'newest', must be 'latest' or the number of an epoch"):
        Policy.load(experiment.run_dir, checkpoint="newest")


def test_loading_leaves_gin_and_torchs_generator_as_they_are(make_experiment: Made) -> None:
    experiment = trained(make_experiment, "discrete-gru")
    gin.clear_config()
    use_config({"GRUTrajEncoder.d_hidden": 24})
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    policy = Policy.load(experiment.run_dir)
    assert policy.agent.traj_encoder.rnn.hidden_size == 8
    assert torch.equal(torch.random.get_rng_state(), before)
    assert gin.query_parameter("GRUTrajEncoder.d_hidden") == 24
    assert gin.config_is_locked()
    with pytest.raises(ValueError, match="has no bound parameters"):
        gin.query_parameter("Actor.d_hidden")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"obs": np.zeros(3, np.float32)}, "reward is None: pass the reward of the previous action"),
        ({"obs": np.zeros(3, np.float32), "reward": float("nan")}, "reward is nan, must be finite"),
        ({"obs": np.zeros(3, np.float32), "reward": [1.0, 2.0]}, "one number for each of 1 row"),
        ({"obs": np.full(3, np.inf, np.float32), "reward": 0.0}, "observation 'observation' is not finite"),
        ({"obs": np.zeros(4, np.float32), "reward": 0.0}, r"has shape \(4,\), and its space says \(3,\)"),
        ({"obs": np.zeros((2, 3), np.float32), "reward": 0.0}, "obs is a batch of 2"),
    ],
)
def test_wrong_inputs_are_named(arguments: dict[str, Any], message: str, make_experiment: Made) -> None:
    policy = Policy.load(trained(make_experiment, "discrete-ff").run_dir)
    policy.act(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=message):
        policy.act(**arguments)


def test_an_observation_without_a_key_names_missing_and_expected_keys(make_experiment: Made) -> None:
    experiment = trained(make_experiment, "choices-transformer")
    policy = Policy.load(experiment.run_dir)
    obs = policy.observation_space.sample()
    policy.act(obs)
    policy.reset()
    room = obs.pop("room")
    with pytest.raises(
        ValueError, match=r"obs lacks \['room'\]: expected are \[.*'joints'.*it has the keys \["
    ):
        policy.act(obs)
    wrong = {**obs, "room": room, "joints": {"angle": obs["joints"]["angle"]}}
    with pytest.raises(
        ValueError, match=r"obs\['joints'\] lacks \['speed'\]: expected are \['angle', 'speed'\]"
    ):
        policy.act(wrong)


ALONE = """
import sys
import numpy as np
import amago

policy = amago.Policy.load(sys.argv[1])
assert "run_environment" not in sys.modules
print(sorted(name for name in sys.modules if name.startswith("amago.envs.builtin.")))
print(policy.act(np.zeros(3, np.float32)), policy.observation_space)
"""

TRAIN = """
from pathlib import Path
import sys
import gin
from amago.agent import Agent
from amago.cli_utils import use_config
from amago.experiment import Experiment
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from run_environment import make_env

use_config({"run_environment.Walk.slope": 0.5, "GRUTrajEncoder.d_hidden": 8}, finalize=False)
run = Experiment(
    run_name="run", ckpt_base_dir=sys.argv[1], dset_root=sys.argv[1], dset_name="data", dset_max_size=10,
    max_seq_len=4, val_timesteps_per_epoch=5, make_train_env=make_env, make_val_env=make_env, parallel_actors=1,
    env_mode="sync", tstep_encoder_type=FFTstepEncoder, traj_encoder_type=GRUTrajEncoder, agent_type=Agent,
    epochs=1, train_timesteps_per_epoch=12, train_batches_per_epoch=1, batch_size=1, dloader_workers=0,
    verbose=False, traj_save_len=6,
)
run.start()
run.learn()
run.close()
"""

ENVIRONMENT = """
import gin
import gymnasium as gym
import numpy as np
from amago.envs import AMAGOEnv


@gin.configurable
class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(-5.0, 5.0, (2,), np.float32)

    def __init__(self, slope=0.0):
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(3, np.float32), 1.0, self.time > 4, False, {}


def make_env():
    return AMAGOEnv(Walk(), "walk")
"""


def test_neither_the_environment_nor_its_package_is_needed(tmp_path: Path) -> None:
    """Not even when gin sets an argument of the environment."""
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    there.mkdir()
    elsewhere.mkdir()
    (there / "run_environment.py").write_text(ENVIRONMENT)
    (there / "train.py").write_text(TRAIN)
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(*command: str, cwd: Path) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=cwd, capture_output=True, text=True, env=variables
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("train.py", str(tmp_path / "runs"), cwd=there)
    printed = run("-c", ALONE, str(tmp_path / "runs" / "run"), cwd=elsewhere)
    builtin, acted = printed.splitlines()
    assert builtin == "['amago.envs.builtin.kshot']"  # parts of amago.envs
    assert acted.endswith("Box(-1.0, 1.0, (3,), float32)")


def test_a_run_whose_parts_have_no_import_path_says_so(make_experiment: Made) -> None:
    use_config({"FFTrajEncoder.layer_type": lambda *sizes: torch.nn.Linear(*sizes)}, finalize=False)
    experiment = trained(make_experiment, "discrete-ff")
    gin.clear_config()
    with pytest.raises(ValueError, match=r"FFTrajEncoder.layer_type: a lambda"):
        Policy.load(experiment.run_dir)
    use_config({"FFTrajEncoder.layer_type": lambda *sizes: torch.nn.Linear(*sizes)}, finalize=False)
    assert Policy.load(experiment.run_dir).act(np.zeros(3, np.float32)) in range(3, 8)


def test_a_policy_is_made_of_an_agent_too_and_follows_its_weights(make_experiment: Made) -> None:
    experiment = trained(make_experiment, "box-transformer")
    policy = Policy(experiment.policy, VECTOR, UNEVEN)
    before = policy.act(VECTOR.sample())
    with torch.no_grad():
        for parameter in experiment.policy.actor.parameters():
            parameter.zero_()
    policy.reset()
    after = policy.act(VECTOR.sample())
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(after, [[-0.5, 5.0]], atol=1e-6)  # the middle of the bounds
    with pytest.raises(ValueError, match="actions have width 5, but the agent's have width 2"):
        Policy(experiment.policy, VECTOR, gym.spaces.Discrete(5))


def test_it_is_a_name_of_amago() -> None:
    assert amago.Policy is Policy


@pytest.mark.gpu
def test_it_acts_on_a_gpu_as_on_a_cpu(make_experiment: Made) -> None:
    run = trained(make_experiment, "box-transformer").run_dir
    on_cpu, on_gpu = Policy.load(run), Policy.load(run, device="cuda")
    for step in range(2 * CONTEXT):
        obs = np.full((3, 3), np.sin(step), np.float32)
        np.testing.assert_allclose(
            on_gpu.act(obs, [0.1] * 3), on_cpu.act(obs, [0.1] * 3), rtol=1e-2, atol=1e-2
        )


class OwnEncoder(FFTstepEncoder):
    """Of a package that is not amago's."""


def test_classes_of_other_packages_are_loaded_if_the_user_trusts_them(make_experiment: Made) -> None:
    run = trained(make_experiment, "discrete-ff", tstep_encoder_type=OwnEncoder).run_dir
    with pytest.raises(
        UntrustedNameError, match="test_policy:OwnEncoder', which is not a part of amago"
    ) as raised:
        Policy.load(run, trust=("other",))
    assert str(raised.value).endswith("if you trust it, pass trust=('other', 'tests')")
    assert isinstance(Policy.load(run, trust=("tests",)).agent.tstep_encoder, OwnEncoder)
