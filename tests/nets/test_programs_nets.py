"""What user programs build on amago.nets: own distributions and encoders, gin references, image sizes.

Each test is a small program as users write it. Shapes: B batch, L timesteps, G discounts, N actions.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gin
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical

from amago.nets.actor_critic import Actor
from amago.nets.cnn import CNN, GridworldCNN, NatureishCNN, SmallImageCNN
from amago.nets.input_norm import InputNorm
from amago.nets.policy_dists import Discrete, DiscreteLikeContinuous, MultiDiscrete, _Categorical
from amago.nets.specs import ArraySpec
from amago.nets.traj_encoders import (
    GRUTrajEncoder,
    TformerTrajEncoder,
    TrajEncoder,
    get_traj_encoder_cls,
    list_registered_traj_encoders,
    register_traj_encoder,
)
from amago.nets.transformer import (
    ClippedSlidingSinkAttention,
    FlashAttention,
    SlidingWindowFlexAttention,
    VanillaAttention,
    VanillaFlexAttention,
)
from amago.nets.tstep_encoders import (
    CNNTstepEncoder,
    FFTstepEncoder,
    MultiModalTstepEncoder,
    TstepEncoder,
    tstep_encoder_for,
)
from amago.nets.tstep_encoders.features import ImageFeatures
from amago.nets.utils import add_activation_log

NEVER = -float("inf")


# Distributions


@gin.configurable
class SharperPolicy(Discrete):
    """A policy that is sharper than its logits."""

    def __init__(self, d_action: int, temperature: float = 0.5, by_probs: bool = False) -> None:
        super().__init__(d_action)
        self.temperature = temperature
        self.by_probs = by_probs

    def forward(self, vec: Tensor, log_dict: Any = None) -> _Categorical:
        scaled = vec / self.temperature
        return _Categorical(probs=torch.softmax(scaled, -1)) if self.by_probs else _Categorical(logits=scaled)


@pytest.mark.parametrize("by_probs", [False, True])
def test_a_discrete_subclass_returns_a_categorical_with_a_temperature(by_probs):
    torch.manual_seed(0)
    gin.parse_config(f"SharperPolicy.by_probs = {by_probs}\nActor.discrete_dist_type = @SharperPolicy")
    actor = Actor(state_dim=6, action_dim=5, discrete=True, gammas=[0.9, 0.99])
    dist = actor(torch.randn(3, 4, 6))
    logits = actor.actor_network_forward(torch.randn(3, 4, 6))
    dist = actor.policy_dist(logits)
    torch.testing.assert_close(dist.probs, torch.softmax(2.0 * logits, -1))
    actions = dist.sample()
    assert actions.shape == (3, 4, 2, 1)  # (B, L, G, 1)
    assert dist.sample((7,)).shape == (7, 3, 4, 2, 1)
    torch.testing.assert_close(dist.log_prob(actions), dist.log_prob(actions.squeeze(-1)))
    torch.testing.assert_close(dist.entropy(), Categorical(logits=2.0 * logits).entropy())

    one_hots = DiscreteLikeContinuous(dist)
    one_hot = F.one_hot(actions.squeeze(-1), 5).float()
    torch.testing.assert_close(one_hots.log_prob(one_hot), dist.log_prob(actions).unsqueeze(-1))
    for samples in (one_hots.sample((6,)), one_hots.rsample((6,))):
        assert samples.shape == (6, 3, 4, 2, 5)
        torch.testing.assert_close(samples.sum(-1), torch.ones(6, 3, 4, 2))


def test_the_built_in_discrete_policy_samples_with_a_last_axis_too():
    assert Discrete(5)(torch.zeros(3, 4, 2, 5)).sample().shape == (3, 4, 2, 1)


@pytest.mark.parametrize("make", [Discrete, SharperPolicy, lambda n: SharperPolicy(n, by_probs=True)])
@pytest.mark.parametrize("never", [-float("inf"), torch.finfo(torch.float32).min, -1e8])
def test_logits_of_minus_infinity_give_finite_losses_entropies_and_samples(make, never):
    torch.manual_seed(0)
    vec = torch.randn(2, 4, 3, 5, requires_grad=True)
    illegal = torch.tensor([True, False, True, False, False]).expand_as(vec)
    dist = make(5)((vec * 1.0).masked_fill_(illegal, never))
    assert not dist.probs[illegal].any()
    assert set(dist.sample((500,)).unique().tolist()) == {1, 3, 4}

    recorded = torch.randint(0, 5, (2, 4, 3))  # old data hold actions that are illegal now
    assert (recorded == 0).any()
    one_hots = DiscreteLikeContinuous(dist)
    loss = dist.log_prob(recorded).sum() + dist.entropy().sum() + one_hots.rsample().square().sum()
    loss.backward()
    assert loss.isfinite()
    assert vec.grad is not None
    assert vec.grad.isfinite().all()
    assert not vec.grad[illegal].any()
    assert vec.grad[~illegal].any()


def test_legal_actions_keep_their_floor_when_others_are_illegal():
    probs = Discrete(4, clip_prob_low=0.1)(torch.tensor([9.0, 0.0, 0.0, NEVER])).probs
    torch.testing.assert_close(probs, torch.tensor([0.99, 0.1, 0.1, 0.0]) / 1.19)


@pytest.mark.parametrize("make", [Discrete, SharperPolicy])
def test_a_state_without_any_legal_action_has_a_uniform_policy(make):
    """The last observation of many games is such a state, and targets are computed for it."""
    vec = torch.full((2, 4), NEVER, requires_grad=True)
    dist = make(4)(vec)
    torch.testing.assert_close(dist.probs, torch.full((2, 4), 0.25))
    assert dist.entropy().tolist() == pytest.approx([math.log(4)] * 2)
    dist.log_prob(torch.zeros(2, dtype=torch.long)).sum().backward()
    assert vec.grad is not None
    assert vec.grad.isfinite().all()


def test_components_of_a_multidiscrete_policy_may_be_masked():
    dist = MultiDiscrete(5, (2, 3))(torch.tensor([[0.0, NEVER, NEVER, 1.0, 2.0]]))
    samples = dist.sample((200,))
    assert not samples[..., [1, 2]].any()
    assert dist.log_prob(samples).isfinite().all()


# Encoders


class Latents(nn.Module):
    """Learned vectors that look at tokens."""

    def __init__(self, count: int, d_model: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(count, d_model))
        self.attention = nn.MultiheadAttention(d_model, num_heads=2, batch_first=True)
        self.out = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, d_model), nn.GELU())

    def forward(self, tokens: Tensor) -> Tensor:
        latents = self.latents.unsqueeze(0).expand(tokens.shape[0], -1, -1)
        attended, _ = self.attention(latents, tokens, tokens, need_weights=False)
        return self.out(attended)


class PerceiverTstepEncoder(TstepEncoder):
    """Reads a set of unit descriptions through a few latents; subclasses compile it."""

    def __init__(self, obs_space: Any, rl2_space: Any, d_model: int = 8, latents: int = 3) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        self.words = nn.Embedding(20, d_model)
        self.numbers = nn.Linear(obs_space["numbers"][0] + rl2_space[0], d_model)
        self.number_norm = InputNorm(obs_space["numbers"][0])
        self.perceiver = Latents(latents, d_model)
        self.d_out = latents * d_model

    @property
    def emb_dim(self) -> int:
        return self.d_out

    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        if self.training:
            self.number_norm.update_stats(obs["numbers"])
        numbers = self.numbers(torch.cat((self.number_norm(obs["numbers"]), rl2s), dim=-1)).unsqueeze(2)
        tokens = torch.cat((self.words(obs["words"]), numbers), dim=2)  # (B, L, words + 1, d_model)
        batch, length = tokens.shape[:2]
        add_activation_log("tokens", tokens, log_dict)
        out = self.perceiver(tokens.flatten(0, 1))
        return out.reshape(batch, length, self.d_out)


class Traced(PerceiverTstepEncoder):
    """Compiled without C++ code, which takes a minute to build."""

    @torch.compile(backend="aot_eager")
    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        return super().inner_forward(obs, rl2s, log_dict)


class Compiled(PerceiverTstepEncoder):
    """Compiled as most users do."""

    @torch.compile
    def inner_forward(self, obs: Any, rl2s: Tensor, log_dict: Any = None) -> Tensor:
        return super().inner_forward(obs, rl2s, log_dict)


@pytest.mark.parametrize("encoder_type", [Traced, pytest.param(Compiled, marks=pytest.mark.slow)])
def test_a_perceiver_whose_forward_is_compiled_trains_and_acts(encoder_type):
    torch.manual_seed(0)
    encoder = encoder_type({"numbers": (3,), "words": (4,)}, (5,))

    def inputs(batch: int, length: int) -> tuple[dict[str, Tensor], Tensor]:
        words = torch.randint(0, 20, (batch, length, 4))
        return {"numbers": torch.randn(batch, length, 3), "words": words}, torch.randn(batch, length, 5)

    obs, rl2s = inputs(3, 6)
    log: dict[str, Any] = {}
    out = encoder(obs=obs, rl2s=rl2s, log_dict=log)
    out.square().sum().backward()
    assert {"activation-tokens-max", "activation-tokens-mean"} <= set(log)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
    assert encoder.number_norm.mu.any()

    encoder.eval()
    with torch.inference_mode():
        whole = encoder(obs=obs, rl2s=rl2s, log_dict=None)
        steps = [
            encoder({key: x[:, t : t + 1] for key, x in obs.items()}, rl2s[:, t : t + 1]) for t in range(6)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_activation_logs_without_a_dictionary_do_nothing():
    add_activation_log("state", torch.ones(2), None)
    add_activation_log("state", torch.ones(2), log_dict=None)
    log: dict[str, Any] = {}
    add_activation_log("state", torch.tensor([1.0, 3.0]), log)
    assert log["activation-state-mean"].item() == 2.0


@pytest.mark.parametrize(
    ("encoder", "space"),
    [
        (FFTstepEncoder, {"observation": (4,)}),
        (CNNTstepEncoder, {"observation": (40, 40, 3)}),
        (MultiModalTstepEncoder, {"observation": (40, 40, 3), "position": (2,)}),
    ],
)
def test_networks_ignore_observations_that_they_were_not_built_for(encoder, space):
    net = encoder(space, (3,)).eval()
    obs = {key: torch.rand(2, 5, *shape) for key, shape in space.items()}
    rl2s = torch.rand(2, 5, 3)
    extra = {"missing_action_mask": torch.ones(2, 5, 4, dtype=torch.bool), "another": torch.rand(2, 5)}
    assert torch.equal(net(obs=obs | extra, rl2s=rl2s), net(obs=obs, rl2s=rl2s))


class UserLSTM(TrajEncoder):
    """torch's LSTM, whose states are (layers, B, width), by someone who did not say so."""

    def __init__(self, tstep_dim: int, max_seq_len: int) -> None:
        super().__init__(tstep_dim=tstep_dim, max_seq_len=max_seq_len)
        self.lstm = nn.LSTM(tstep_dim, 6, num_layers=2, batch_first=True)

    @property
    def emb_dim(self) -> int:
        return 6

    def forward(self, seq: Tensor, time_idxs: Tensor, hidden_state: Any = None, log_dict: Any = None) -> Any:
        return self.lstm(seq, hidden_state)


def test_a_hidden_state_with_its_batch_on_another_axis_says_where_to_declare_it():
    encoder = UserLSTM(3, 8)
    _, state = encoder(torch.randn(4, 1, 3), torch.zeros(4, 1, 1, dtype=torch.long))
    message = r"one bool for each of 2 rows, got 4.* \(2, 4, 6\).* axis 0.*class attribute hidden_batch_axis"
    with pytest.raises(ValueError, match=message):
        encoder.reset_hidden_state(state, [False, True, False, False])
    UserLSTM.hidden_batch_axis = 1
    try:
        hidden, _ = encoder.reset_hidden_state(state, [False, True, False, False])
    finally:
        del UserLSTM.hidden_batch_axis
    assert not hidden[:, 1].any()
    assert hidden[:, 0].any()


def test_gru_means_rnn_unless_the_user_registers_an_encoder_by_that_name():
    assert get_traj_encoder_cls("gru") is GRUTrajEncoder
    assert "gru" not in list_registered_traj_encoders()
    registry = register_traj_encoder.__self__
    register_traj_encoder("gru")(UserLSTM)
    try:
        assert get_traj_encoder_cls("gru") is UserLSTM
    finally:
        del registry._classes["gru"]


# Attention and positions


ATTENTION = {
    "VanillaAttention": VanillaAttention,
    "FlashAttention": FlashAttention,
    "VanillaFlexAttention": VanillaFlexAttention,
    "SlidingWindowFlexAttention": SlidingWindowFlexAttention,
    "ClippedSlidingSinkAttention": ClippedSlidingSinkAttention,
}
SETTINGS = """
TformerTrajEncoder.d_model = 16
TformerTrajEncoder.n_heads = 2
TformerTrajEncoder.d_ff = 16
TformerTrajEncoder.n_layers = 1
SlidingWindowFlexAttention.window_size = 3
ClippedSlidingSinkAttention.window_size = 3
ClippedSlidingSinkAttention.sink_size = 1
"""


@pytest.mark.parametrize("prefix", ["", "transformer.", "amago.nets.transformer."])
@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("from_file", [False, True])
def test_attention_types_are_gin_references(tmp_path: Path, name: str, prefix: str, from_file: bool):
    binding = f"amago.nets.traj_encoders.TformerTrajEncoder.attention_type = @{prefix}{name}"
    if from_file:
        (tmp_path / "run.gin").write_text(f"{SETTINGS}{binding}\n")
        gin.parse_config_file(str(tmp_path / "run.gin"))
    else:
        gin.parse_config(SETTINGS)
        gin.parse_config(binding)
    encoder = TformerTrajEncoder(tstep_dim=5, max_seq_len=8).eval()
    assert type(encoder.tformer.layers[0].attention_layer.self_attention) is ATTENTION[name]
    times = torch.arange(8).view(1, 8, 1).expand(2, -1, -1)
    seq, state, steps = torch.randn(2, 8, 5), encoder.init_hidden_state(2, "cpu"), []
    for t in range(8):
        step, state = encoder(seq[:, t : t + 1], time_idxs=times[:, t : t + 1], hidden_state=state)
        steps.append(step)
    whole, _ = encoder(seq=seq, time_idxs=times, hidden_state=None)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_flex_attention_takes_its_functions_from_gin():
    @gin.configurable(module="test_programs_nets")
    def only_even_keys(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx % 2 == 0

    gin.parse_config(SETTINGS)
    gin.parse_config(
        """
        TformerTrajEncoder.attention_type = @FlexAttention
        FlexAttention.mask_mod = @only_even_keys
        """
    )
    encoder = TformerTrajEncoder(tstep_dim=5, max_seq_len=8).eval()
    times = torch.arange(6).view(1, 6, 1)
    seq = torch.randn(1, 6, 5)
    changed = seq.clone()
    changed[:, 3] += 1.0
    first, second = encoder(seq, time_idxs=times)[0], encoder(changed, time_idxs=times)[0]
    torch.testing.assert_close(first[:, 4:], second[:, 4:])
    assert not torch.allclose(first[:, 3], second[:, 3])


@pytest.mark.parametrize("spelling", ["learned", "learnable"])
def test_learned_positions_need_no_further_setting(spelling):
    gin.parse_config(SETTINGS)
    encoder = TformerTrajEncoder(tstep_dim=5, max_seq_len=8, pos_emb=spelling)
    assert encoder.tformer.position_embedding.max_time_idx == 2048
    out, _ = encoder(torch.randn(1, 9, 5), torch.arange(9).view(1, 9, 1))
    assert out.shape == (1, 9, 16)
    late = torch.full((1, 1, 1), 2048)
    with pytest.raises(ValueError, match=r"step 2048 .* LearnablePosEmb\.max_time_idx .* at least 2049"):
        encoder(torch.randn(1, 1, 5), late)
    longer = TformerTrajEncoder(tstep_dim=5, max_seq_len=5000, pos_emb=spelling)
    assert longer.tformer.position_embedding.max_time_idx == 5001  # transitions, and the final observation


def test_a_number_of_learned_positions_in_gin_wins():
    gin.parse_config(SETTINGS)
    gin.parse_config("LearnablePosEmb.max_time_idx = 12")
    encoder = TformerTrajEncoder(tstep_dim=5, max_seq_len=8, pos_emb="learned")
    assert encoder.tformer.position_embedding.embeddings.num_embeddings == 12


# Image sizes


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("shape", [(32, 32, 3), (3, 32, 32)])
def test_a_small_image_with_a_vector_gets_a_network_of_a_fitting_size(shape):
    space = {"image": ArraySpec(shape, "uint8", 0, 255), "vector": (5,)}
    assert tstep_encoder_for(space) == "multimodal"
    encoder = MultiModalTstepEncoder(space, (4,))
    assert count(encoder) < 1_000_000
    imgs = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
    out = encoder(obs={"image": imgs, "vector": torch.randn(2, 3, 5)}, rl2s=torch.zeros(2, 3, 4))
    out.square().sum().backward()
    first = encoder.obs_encoders["image_encoder"].cnn.conv1
    assert first.in_channels == 3
    assert first.weight.grad.any()


@pytest.mark.parametrize("side", [4, 5, 8, 11, 12, 16, 22, 23, 24, 28, 32, 35, 36, 48, 64, 84])
def test_the_default_network_fits_every_image_size(side):
    features = ImageFeatures((side, side, 3))
    assert features(torch.rand(1, 1, side, side, 3)).shape == (1, 1, 256)
    assert count(features) < 1_000_000


@pytest.mark.parametrize(
    ("shape", "network"),
    [
        ((7, 7, 3), GridworldCNN),
        ((11, 30, 3), GridworldCNN),
        ((22, 22, 3), SmallImageCNN),
        ((35, 80, 1), SmallImageCNN),
        ((3, 36, 36), NatureishCNN),
    ],
)
def test_the_default_network_goes_by_the_shorter_side(shape: tuple[int, ...], network: type[CNN]):
    assert type(ImageFeatures(shape).cnn) is network


@pytest.mark.parametrize("side", [12, 13, 21, 22])
def test_every_cell_of_a_grid_reaches_the_small_network(side):
    net = SmallImageCNN((side, side, 1))
    img = torch.zeros(1, 1, side, side, 1, requires_grad=True)
    net(img, from_float=True).square().sum().backward()
    assert img.grad is not None
    assert (img.grad != 0).all()


def test_an_array_too_small_for_convolutions_is_flattened():
    assert tstep_encoder_for({"board": (3, 3, 2)}) == "ff"
    encoder = MultiModalTstepEncoder({"board": (3, 3, 2), "image": (40, 40, 3)}, (4,))
    assert encoder.obs_encoders["board_encoder"].mlp.in_layer.in_features == 18


def test_a_network_whose_kernels_do_not_fit_is_an_error_with_a_remedy():
    message = r"NatureishCNN with kernels \[8, 4, 3\].* at least 36 x 36 pixels, got 32 x 32.*cnn_type"
    with pytest.raises(ValueError, match=message):
        CNNTstepEncoder({"observation": (32, 32, 3)}, (4,))
    gin.parse_config("NatureishCNN.kernels = [4, 3, 3]\nNatureishCNN.strides = [2, 2, 1]")
    assert CNNTstepEncoder({"observation": (32, 32, 3)}, (4,)).emb_dim == 256
