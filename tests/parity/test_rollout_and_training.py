"""What the policy saw in a rollout is what training sees in the recorded file, window and resets included."""

import itertools

import gin
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.exploration import EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import make_vector_env
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.hindsight import load_trajectory
from amago.nets import transformer
from amago.nets.traj_encoders import get_traj_encoder_cls
from amago.nets.tstep_encoders import FFTstepEncoder

ACTORS, WINDOW = 3, 6


@pytest.fixture(autouse=True)
def small_networks():
    gin.clear_config()
    small = {
        "FFTstepEncoder.d_hidden": 16,
        "FFTstepEncoder.d_output": 12,
        "FFTrajEncoder.d_model": 16,
        "GRUTrajEncoder.d_hidden": 12,
        "GRUTrajEncoder.d_output": 12,
        "MambaTrajEncoder.d_model": 12,
        "MambaTrajEncoder.n_layers": 2,
        "TformerTrajEncoder.d_model": 16,
        "TformerTrajEncoder.n_heads": 2,
        "TformerTrajEncoder.d_ff": 32,
        "TformerTrajEncoder.n_layers": 2,
    }
    for key, value in small.items():
        gin.bind_parameter(key, value)
    yield
    gin.clear_config()


def make_env():
    return AMAGOEnv(MetaFrozenLake(size=3, k_episodes=3), env_name="Lake")


class RememberedStates(Agent):
    """Keeps every state that it acted on."""

    def get_state_embedding(self, obs, rl2s, time_idxs, hidden_state=None, log_dict=None):
        states, hidden_state = super().get_state_embedding(obs, rl2s, time_idxs, hidden_state, log_dict)
        if rl2s.shape[1] == 1:
            self.acted_on.append(
                (time_idxs.squeeze().clone(), rl2s.squeeze(1).clone(), states.squeeze(1).clone())
            )
        return states, hidden_state


def collect(agent, folder, steps):
    """Roll out with exploration and record; the files, and the states by actor and step."""
    env = make_vector_env(
        [make_env] * ACTORS, env_mode="sync", exploration_wrapper_type=EpsilonGreedy, seed=0
    )
    recorder = TrajectoryRecorder(
        ACTORS,
        save_to=folder,
        save_len=float("inf"),
        max_seq_len=WINDOW,
        stagger=False,
        rng=np.random.default_rng(0),
    )
    rollout = Rollout(ActingPolicy(agent, device=torch.device("cpu")), env, recorder=recorder)
    rollout.reset(seed=0)
    rollout.run(timesteps=steps)
    recorder.cut()
    recorder.flush()
    recorder.close()
    env.close()
    return [load_trajectory(path) for path in sorted(folder.iterdir())]


def whole_history(agent, piece):
    """States of a recorded episode in one forward; each position sees its last WINDOW steps."""
    if hasattr(agent.traj_encoder, "tformer"):
        for layer in agent.traj_encoder.tformer.layers:
            layer.attention_layer.self_attention = transformer.FlashAttention(True, 0.0, (WINDOW - 1, 0))
    obs = {key: torch.from_numpy(value).unsqueeze(0) for key, value in piece.obs.items()}
    rl2s, times = (torch.from_numpy(x).unsqueeze(0) for x in (piece.rl2s, piece.time_idxs))
    with torch.no_grad():
        return Agent.get_state_embedding(agent, obs, rl2s, times)[0][0]  # (T+1, S)


@pytest.mark.parametrize("encoder", ["identity", "ff", "rnn", "transformer", "mamba"])
def test_states_of_a_rollout_equal_those_of_its_recorded_episodes(tmp_path, encoder):
    torch.manual_seed(0)
    sample = make_env()
    agent = RememberedStates(
        obs_space=sample.observation_space,
        rl2_space=sample.rl2_space,
        action_space=sample.action_space,
        max_seq_len=WINDOW,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=get_traj_encoder_cls(encoder),
    ).eval()
    agent.acted_on = []
    pieces = collect(agent, tmp_path, steps=120)
    assert len(pieces) > 6
    assert max(len(piece) for piece in pieces) > 2 * WINDOW

    acted_on = [
        [(int(times[row]), rl2s[row], states[row]) for times, rl2s, states in agent.acted_on]
        for row in range(ACTORS)
    ]
    episodes = []
    for steps in acted_on:
        starts = [i for i, (time, _, _) in enumerate(steps) if time == 0] + [len(steps)]
        episodes += [steps[a:b] for a, b in itertools.pairwise(starts)]
    compared = 0
    for piece in pieces:
        history = whole_history(agent, piece)
        matches = [
            episode
            for episode in episodes
            if len(episode) == len(piece)
            and all(torch.equal(step[1], torch.from_numpy(piece.rl2s[i])) for i, step in enumerate(episode))
            and all(step[0] == piece.time_idxs[i, 0] for i, step in enumerate(episode))
        ]
        close = [
            torch.allclose(torch.stack([step[2] for step in episode]), history[:-1], atol=1e-4)
            for episode in matches
        ]
        assert any(close), f"no rollout saw the states of a recorded episode of {len(piece)} steps"
        compared += 1
    assert compared == len(pieces)
