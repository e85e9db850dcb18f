"""The package as a whole: what it imports, how its parts are configured, and how parameters are named."""

import math

import gin
import pytest
import torch

from amago.nets.actor_critic import Actor
from amago.nets.cnn import IMPALAishCNN
from amago.nets.policy_dists import GMM, TanhGaussian
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder


@pytest.mark.parametrize(
    "selector", ["MLP.n_layers", "FFBlock.d_ff", "Normalization.method", "DrQCNN.activation"]
)
def test_building_blocks_are_not_gin_configurable(selector):
    with pytest.raises(ValueError, match=r"No configurable|Couldn't find"):
        gin.bind_parameter(selector, 1)


def test_skipping_the_input_norm_is_not_for_gin():
    with pytest.raises(ValueError, match="skip"):
        gin.bind_parameter("InputNorm.skip", True)


def test_bindings_reach_what_encoders_and_heads_build():
    gin.bind_parameter("amago.nets.tstep_encoders.CNNTstepEncoder.cnn_type", IMPALAishCNN)
    gin.bind_parameter("amago.nets.cnn.IMPALAishCNN.cnn_block_depths", [32, 64, 64])
    gin.bind_parameter("Discrete.clip_prob_low", 0.05)
    gin.bind_parameter("InputNorm.beta", 0.5)
    gin.bind_parameter("Actor.continuous_dist_type", GMM)
    encoder = CNNTstepEncoder(obs_space={"observation": (64, 64, 3)}, rl2_space=(4,))
    assert [block.conv.out_channels for block in encoder.cnn.blocks] == [32, 64, 64]
    assert FFTstepEncoder({"observation": (3,)}, (4,)).in_norm.beta == 0.5
    assert isinstance(Actor(state_dim=4, action_dim=2, discrete=False, gammas=[0.9]).policy_dist, GMM)
    assert Actor(state_dim=4, action_dim=2, discrete=True, gammas=[0.9]).policy_dist.clip_prob_low == 0.05


def test_std_activation_is_set_by_gin():
    gin.parse_config("TanhGaussian.std_activation = @softplus_bounded_positive")
    dist = TanhGaussian(2, std_low=0.5)(torch.zeros(1, 4))
    torch.testing.assert_close(dist.std, torch.full((1, 2), 0.5 + math.log(2.0)))


def test_modules_compute_in_bfloat16_autocast():
    encoder = GRUTrajEncoder(tstep_dim=8, max_seq_len=4, d_hidden=8, d_output=8)
    tstep_encoder = FFTstepEncoder(obs_space={"observation": (3,)}, rl2_space=(4,), d_output=8)
    actor = Actor(state_dim=8, action_dim=3, discrete=True, gammas=[0.9])
    hidden_state = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            emb = tstep_encoder({"observation": torch.randn(2, 1, 3)}, torch.randn(2, 1, 4))
            state, hidden_state = encoder(emb, hidden_state=hidden_state)
            dist = actor(state)
    assert dist.probs.dtype == torch.float32
    assert dist.probs.isfinite().all()
