"""The package as a whole: what it imports, how its parts are configured, and how parameters are named."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import gin
import pytest
import torch

from amago.nets.actor_critic import Actor
from amago.nets.cnn import IMPALAishCNN
from amago.nets.policy_dists import GMM, Discrete, TanhGaussian
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder
from amago.nets.utils import InputNorm

LAYOUT = json.loads((Path(__file__).parents[1] / "golden" / "state_dict_layout.json").read_text())


def test_networks_import_without_any_environment_library():
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['gymnasium', 'accelerate', 'wandb', 'safetensors', 'matplotlib']))\n"
        "import amago.nets\n"
        "for name in dir(amago.nets):\n"
        "    getattr(amago.nets, name)\n"
        "amago.nets.tstep_encoders.FFTstepEncoder({'observation': (3,)}, (4,))\n"
        "loaded = [m for m in sys.modules if m.startswith(('amago.envs', 'amago.agent', 'amago.hindsight'))]\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


CONFIGURABLE = [
    "amago.nets.actor_critic.Actor.d_hidden",
    "amago.nets.actor_critic.ResidualActor.feature_dim",
    "amago.nets.cnn.DrQv2Aug.pad",
    "amago.nets.cnn.GridworldCNN.channels",
    "amago.nets.cnn.IMPALAishCNN.cnn_block_depths",
    "amago.nets.cnn.NatureishCNN.kernels",
    "amago.nets.policy_dists.Beta.alpha_low",
    "amago.nets.policy_dists.Discrete.clip_prob_low",
    "amago.nets.policy_dists.GMM.gmm_modes",
    "amago.nets.policy_dists.TanhGaussian.std_low",
    "amago.nets.policy_dists.softplus_bounded_positive.low",
    "amago.nets.policy_dists.tanh_bounded_positive.low",
    "amago.nets.traj_encoders.FFTrajEncoder.d_model",
    "amago.nets.traj_encoders.GRUTrajEncoder.d_hidden",
    "amago.nets.tstep_encoders.CNNTstepEncoder.cnn_type",
    "amago.nets.tstep_encoders.FFTstepEncoder.d_hidden",
    "amago.nets.tstep_encoders.ImageFeatures.drqv2_aug",
    "amago.nets.tstep_encoders.MultiModalTstepEncoder.encoders",
    "amago.nets.tstep_encoders.TokenFeatures.d_emb",
    "amago.nets.tstep_encoders.VectorFeatures.symlog_inputs",
    "amago.nets.utils.InputNorm.beta",
    "amago.nets.utils.SlowAdaptiveRational.trainable",
]


@pytest.mark.parametrize("selector", CONFIGURABLE)
def test_settings_are_bound_by_full_partial_and_short_names(selector):
    parts = selector.split(".")
    for start in (0, 2, 3):
        name = ".".join(parts[start:])
        gin.bind_parameter(name, 7)
        assert gin.query_parameter(selector) == 7
        gin.clear_config()


@pytest.mark.parametrize(
    "selector", ["MLP.n_layers", "FFBlock.d_ff", "Normalization.method", "DrQCNN.activation"]
)
def test_building_blocks_take_their_settings_from_their_owners_alone(selector):
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


def test_a_gin_file_can_name_the_map_of_standard_deviations():
    gin.parse_config("TanhGaussian.std_activation = @softplus_bounded_positive")
    dist = TanhGaussian(2, std_low=0.5)(torch.zeros(1, 4))
    torch.testing.assert_close(dist.std, torch.full((1, 2), 0.5 + math.log(2.0)))


def saved_names(module, prefix):
    return {f"{prefix}.{key}": list(value.shape) for key, value in module.state_dict().items()}


@pytest.mark.parametrize("actions", ["continuous", "discrete"])
@pytest.mark.parametrize("arch", ["ff", "rnn"])
def test_parameters_have_the_names_and_shapes_of_saved_policies(actions, arch):
    layout = LAYOUT[f"Agent/{actions}/{arch}"]
    discrete = actions == "discrete"
    action_dim = 3 if discrete else 2
    tstep_encoder = FFTstepEncoder(obs_space={"observation": (4,)}, rl2_space=(1 + action_dim,))
    traj_encoder_type = {"ff": FFTrajEncoder, "rnn": GRUTrajEncoder}[arch]
    traj_encoder = traj_encoder_type(tstep_dim=tstep_encoder.emb_dim, max_seq_len=8)
    actor = Actor(traj_encoder.emb_dim, action_dim, discrete=discrete, gammas=[0.5] * 7)
    parts = {"tstep_encoder": tstep_encoder, "traj_encoder": traj_encoder, "actor": actor}
    for prefix, module in parts.items():
        expected = {key: shape for key, shape in layout.items() if key.startswith(f"{prefix}.")}
        assert saved_names(module, prefix) == expected


def test_classes_survive_pickling_by_reference():
    for cls in (Actor, Discrete, FFTstepEncoder, GRUTrajEncoder, InputNorm):
        assert pickle.loads(pickle.dumps(cls)) is cls


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


def test_the_readme_runs():
    readme = Path(__file__).parents[2] / "packages" / "amago-nets" / "README.md"
    blocks = readme.read_text().split("```python\n")[1:]
    assert len(blocks) == 7
    code = "\n".join(block.split("```")[0] for block in blocks)
    exec(compile(code, str(readme), "exec"), {})
