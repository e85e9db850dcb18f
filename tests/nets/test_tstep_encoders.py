"""Timestep encoders: golden numbers, padding and hidden inputs, and encoders that users write."""

import warnings

import gin
import gymnasium
import numpy as np
import pytest
import torch

from amago.nets import cnn
from amago.nets.cnn import DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN
from amago.nets.cnn.augment import num_clean_sequences
from amago.nets.masking import MAGIC_PAD_VAL, mask_from_filler, timestep_mask
from amago.nets.tstep_encoders import (
    CNNTstepEncoder,
    FFTstepEncoder,
    MultiModalTstepEncoder,
    TstepEncoder,
    get_tstep_encoder_cls,
    list_registered_tstep_encoders,
    register_tstep_encoder,
)


def box(*shape, dtype=np.float32):
    return gymnasium.spaces.Box(0, 255, shape, dtype)


def test_the_array_encoder_equals_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("ff_tstep")
    spaces = gymnasium.spaces.Dict({key: box(*shape) for key, shape in case.args["obs_space"].items()})
    encoder = FFTstepEncoder(obs_space=spaces, rl2_space=box(case.args["rl2_dim"]), **case.args["kwargs"])
    encoder.load_state_dict(case.state, strict=True)
    t = case.tensors
    y = encoder(obs={"a": t["obs_a"], "b": t["obs_b"]}, rl2s=t["rl2s"])
    assert_forward(y.detach(), t["y"])
    for key, value in encoder.state_dict().items():
        assert_forward(value, t[f"after.{key}"])


@pytest.mark.parametrize("name", ["DrQCNN", "GridworldCNN", "IMPALAishCNN", "NatureishCNN"])
def test_the_image_encoder_equals_the_golden_numbers(torch_golden, assert_forward, name):
    case = torch_golden(f"cnn_tstep_{name}")
    encoder = CNNTstepEncoder(
        obs_space=gymnasium.spaces.Dict({"observation": box(*case.args["img_shape"], dtype=np.uint8)}),
        rl2_space=box(case.args["rl2_dim"]),
        cnn_type=getattr(cnn, name),
        channels_first=case.args["channels_first"],
        **case.args["kwargs"],
    )
    encoder.load_state_dict(case.state, strict=True)
    y = encoder(obs={"observation": case.tensors["img"]}, rl2s=case.tensors["rl2s"])
    assert_forward(y.detach(), case.tensors["y"])


def padded_batch():
    """Three real timesteps in the second row, five in the first; everything else is filler."""
    torch.manual_seed(0)
    obs, rl2s = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    obs[1, 3:] = MAGIC_PAD_VAL
    rl2s[1, 3:] = MAGIC_PAD_VAL
    return {"observation": obs}, rl2s


class HidesBeforeItLooks(FFTstepEncoder):
    """The fault: rl2s are zeroed first, so a padded row is no longer all filler."""

    def forward(self, obs, rl2s, log_dict=None):
        rl2s = rl2s * 0.0 if self.hide_rl2s else rl2s
        with timestep_mask(mask_from_filler(torch.cat([obs["observation"], rl2s], -1))):
            return self.inner_forward(obs, rl2s, log_dict=log_dict)


def test_padding_stays_out_of_the_statistics_when_rl2s_are_hidden():
    obs, rl2s = padded_batch()
    hidden = FFTstepEncoder({"observation": (3,)}, (4,), hide_rl2s=True)
    shown = FFTstepEncoder({"observation": (3,)}, (4,))
    faulty = HidesBeforeItLooks({"observation": (3,)}, (4,), hide_rl2s=True)
    for encoder in (hidden, shown, faulty):
        encoder(obs, rl2s)
    torch.testing.assert_close(hidden.in_norm.mu[:3], shown.in_norm.mu[:3])
    assert not hidden.in_norm.mu[3:].any()
    assert (faulty.in_norm.mu[:3] - shown.in_norm.mu[:3]).abs().max() > 0.1


@pytest.mark.parametrize("normalize_inputs", [True, False])
def test_statistics_move_in_training_only(normalize_inputs):
    encoder = FFTstepEncoder({"observation": (3,)}, (4,), normalize_inputs=normalize_inputs)
    obs, rl2s = {"observation": torch.randn(2, 5, 3)}, torch.randn(2, 5, 4)
    encoder.eval()
    encoder(obs, rl2s)
    assert encoder.in_norm._t == 1.0
    encoder.train()
    encoder(obs, rl2s)
    assert encoder.in_norm._t == 2.0


@pytest.mark.parametrize("encoder_type", [FFTstepEncoder, CNNTstepEncoder, MultiModalTstepEncoder])
def test_hidden_rl2s_change_nothing(encoder_type):
    shape = (40, 40, 3) if encoder_type is CNNTstepEncoder else (3,)
    encoder = encoder_type({"observation": shape}, (4,), hide_rl2s=True).eval()
    obs = {"observation": torch.rand(2, 3, *shape)}
    assert torch.equal(encoder(obs, torch.randn(2, 3, 4)), encoder(obs, torch.full((2, 3, 4), float("nan"))))


class RL2Only(TstepEncoder):
    """The least that a user has to write."""

    @property
    def emb_dim(self):
        return 4

    def inner_forward(self, obs, rl2s, log_dict=None):
        return rl2s


def test_hidden_rewards_leave_the_previous_action():
    rl2s = torch.randn(2, 3, 4)
    out = RL2Only({"observation": (3,)}, (4,), hide_rewards=True)({}, rl2s)
    assert not out[..., 0].any()
    assert torch.equal(out[..., 1:], rl2s[..., 1:])


@pytest.mark.parametrize("encoder_type", [FFTstepEncoder, CNNTstepEncoder, MultiModalTstepEncoder])
def test_rewards_of_every_encoder_are_hidden_through_gin(encoder_type):
    gin.bind_parameter("TstepEncoder.hide_rewards", True)
    encoder = encoder_type({"observation": (40, 40, 3)}, (4,)).eval()
    obs = {"observation": torch.rand(1, 2, 40, 40, 3)}
    rl2s, other_reward, other_action = (torch.zeros(1, 2, 4) for _ in range(3))
    other_reward[..., 0] = 9.0
    other_action[..., 1] = 1.0
    assert torch.equal(encoder(obs, rl2s), encoder(obs, other_reward))
    assert not torch.isclose(encoder(obs, rl2s), encoder(obs, other_action)).all()


@pytest.mark.parametrize("network", [DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN])
def test_output_does_not_depend_on_layout_or_dtype(network):
    torch.manual_seed(0)
    last = CNNTstepEncoder({"observation": (38, 40, 3)}, (4,), cnn_type=network)
    first = CNNTstepEncoder({"observation": (3, 38, 40)}, (4,), cnn_type=network, channels_first=True)
    first.load_state_dict(last.state_dict(), strict=True)
    imgs, rl2s = torch.randint(0, 256, (2, 3, 38, 40, 3), dtype=torch.uint8), torch.randn(2, 3, 4)
    expected = last({"observation": imgs}, rl2s)
    assert expected.shape == (2, 3, last.emb_dim)
    for other in (imgs.float(), imgs.double(), imgs.long()):
        torch.testing.assert_close(last({"observation": other}, rl2s), expected)
    torch.testing.assert_close(first({"observation": imgs.permute(0, 1, 4, 2, 3)}, rl2s), expected)
    expected.sum().backward()
    assert all(parameter.grad is not None for parameter in last.parameters())


def test_images_in_0_to_1_scaled_as_pixels_warn():
    space = gymnasium.spaces.Dict({"observation": gymnasium.spaces.Box(0.0, 1.0, (40, 40, 3))})
    with pytest.warns(UserWarning, match=r"lies in \[0.0, 1.0\].*from_float=True"):
        CNNTstepEncoder(space, (4,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CNNTstepEncoder(space, (4,), from_float=True)
        CNNTstepEncoder({"observation": (40, 40, 3)}, (4,))


@pytest.mark.parametrize("channels_first", [False, True])
def test_augmentation_acts_in_training_on_the_last_sequences_only(channels_first):
    torch.manual_seed(0)
    shape = (3, 40, 40) if channels_first else (40, 40, 3)
    encoder = CNNTstepEncoder({"observation": shape}, (4,), channels_first=channels_first, drqv2_aug=True)
    plain = CNNTstepEncoder({"observation": shape}, (4,), channels_first=channels_first)
    plain.load_state_dict(encoder.state_dict())
    obs = {"observation": torch.randint(0, 255, (8, 2, *shape), dtype=torch.uint8)}
    rl2s = torch.zeros(8, 2, 4)
    augmented, clean = encoder(obs, rl2s), plain(obs, rl2s)
    same = torch.isclose(augmented, clean, atol=1e-6).flatten(1).all(1)
    assert same.tolist() == [True, True, False, False, False, False, False, False]
    encoder.eval()
    torch.testing.assert_close(encoder(obs, rl2s), clean)


@pytest.mark.parametrize(
    ("batch_size", "share", "clean"), [(8, 0.75, 2), (9, 0.75, 3), (1, 0.75, 0), (4, 0.0, 3), (4, 1.0, 0)]
)
def test_the_share_of_clean_sequences_is_rounded_up_but_never_all(batch_size, share, clean):
    assert num_clean_sequences(batch_size, share) == clean


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CNNTstepEncoder({"img": (40, 40, 3)}, (4,), obs_key="imgs"), "'imgs'.*Did you mean 'img'"),
        (lambda: CNNTstepEncoder({"observation": (4,)}, (4,)), r"must be an image.*\(4,\)"),
        (lambda: CNNTstepEncoder({"observation": (40, 44, 3)}, (4,), drqv2_aug=True), "square.*40 x 44"),
        (
            lambda: CNNTstepEncoder({"observation": (40, 40, 3)}, (4,), drqv2_aug=True, aug_pct_of_batch=75),
            "aug_pct_of_batch must be at most 1, got 75",
        ),
        (
            lambda: FFTstepEncoder({"pos": (4,)}, (4,), specify_obs_keys=["poss"]),
            "'poss'.*Did you mean 'pos'",
        ),
        (lambda: FFTstepEncoder({"pos": (4,)}, (4,), specify_obs_keys=[]), "at least one of pos"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_encoders_are_found_by_name():
    assert get_tstep_encoder_cls("ff") is FFTstepEncoder
    assert get_tstep_encoder_cls("cnn") is CNNTstepEncoder
    assert {"ff", "cnn", "multimodal"} <= set(list_registered_tstep_encoders())
    with pytest.raises(ValueError, match=r"unknown timestep encoder 'cn'.*Did you mean 'cnn'"):
        get_tstep_encoder_cls("cn")


def test_a_name_can_be_registered_once():
    register_tstep_encoder("rl2-only")(RL2Only)
    assert get_tstep_encoder_cls("rl2-only") is RL2Only
    with pytest.raises(ValueError, match=r"'rl2-only' is already registered"):
        register_tstep_encoder("rl2-only")(FFTstepEncoder)
