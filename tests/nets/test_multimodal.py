"""Images, vectors and token sequences in one observation: which encoder each gets, and what must not matter."""

import gin
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from amago.nets.cnn import GridworldCNN, IMPALAishCNN
from amago.nets.masking import MAGIC_PAD_VAL
from amago.nets.specs import ArraySpec, as_array_spec
from amago.nets.tstep_encoders import (
    ImageFeatures,
    MultiModalTstepEncoder,
    TokenFeatures,
    VectorFeatures,
    get_tstep_encoder_cls,
    tstep_encoder_for,
)
from amago.nets.tstep_encoders.features import channels_come_first
from amago.nets.tstep_encoders.multimodal import kind_of

# No token is 4, the filler of padding.
SPACE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (40, 40, 3), np.uint8),
        "instruction": spaces.Box(10, 59, (6,), np.int64),
        "joints": spaces.Box(-np.inf, np.inf, (5,)),
        "speed": spaces.Box(0.0, 90.0, ()),
    }
)
ACTION_WIDTH = 3


def observations(batch: int, length: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    obs = {
        "camera": torch.randint(0, 256, (batch, length, 40, 40, 3), dtype=torch.uint8),
        "instruction": torch.randint(10, 60, (batch, length, 6)),
        "joints": 3.0 * torch.randn(batch, length, 5) + 1.0,
        "speed": 90.0 * torch.rand(batch, length),
    }
    return obs, torch.randn(batch, length, 1 + ACTION_WIDTH)


def make(space=SPACE, **kwargs) -> MultiModalTstepEncoder:
    torch.manual_seed(0)
    return MultiModalTstepEncoder(obs_space=space, rl2_space=(1 + ACTION_WIDTH,), **kwargs)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Box(0, 255, (64, 64, 3), np.uint8), "image"),
        (spaces.Box(0.0, 1.0, (3, 64, 64)), "image"),
        (spaces.Box(-1.0, 1.0, (7,)), "vector"),
        (spaces.Box(-1.0, 1.0, ()), "vector"),
        ((7,), "vector"),
        (spaces.Discrete(9), "vector"),
        (spaces.MultiBinary(9), "vector"),
        (spaces.Box(0, 1, (9,), np.int64), "vector"),
        (spaces.Box(0, 99, (1,), np.int64), "vector"),
        (spaces.Box(0, 99, (), np.int64), "vector"),
        (spaces.Box(-(2**62), 2**62, (9,), np.int64), "vector"),
        (spaces.Box(0, 99, (9,), np.int64), "tokens"),
        (spaces.Box(-3, 99, (2,), np.int16), "tokens"),
        (ArraySpec((9,), "int64", low=0, high=99), "tokens"),
        (ArraySpec((9,), "int64"), "vector"),
        (spaces.Box(0.0, 1.0, (7, 3)), None),
        (spaces.Box(0.0, 1.0, (2, 3, 8, 8)), None),
    ],
    ids=str,
)
def test_encoder_kind_follows_from_the_space(space, kind):
    assert kind_of(as_array_spec(space)) == kind


PIXELS = spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (spaces.Box(-1.0, 1.0, (4,)), "ff"),
        ({"a": (4,), "text": spaces.Box(0, 99, (9,), np.int64)}, "ff"),
        ({"points": (4, 3)}, "ff"),
        (PIXELS, "cnn"),
        ({"observation": PIXELS}, "cnn"),
        ({"observation": (64, 64, 3)}, "cnn"),
        ({"camera": PIXELS}, "multimodal"),
        (spaces.Box(0, 255, (3, 64, 64), np.uint8), "multimodal"),
        (spaces.Box(0, 255, (35, 64, 3), np.uint8), "multimodal"),
        (spaces.Box(0.0, 1.0, (64, 64, 3)), "multimodal"),
        ({"observation": PIXELS, "joints": (4,)}, "multimodal"),
        (SPACE, "multimodal"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_default_encoder_of_a_space_can_be_built(space, name):
    assert tstep_encoder_for(space) == name
    get_tstep_encoder_cls(name)(obs_space=space, rl2_space=(3,))


def test_gradients_reach_every_parameter():
    encoder = make()
    obs, rl2s = observations(4, 3)
    encoder(obs, rl2s)[..., 0].sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("hide_rl2s", [False, True])
def test_padding_changes_neither_results_nor_statistics(hide_rl2s):
    """Three real timesteps in the second row; every array holds the filler behind them, tokens and pixels too."""
    padded, whole = make(hide_rl2s=hide_rl2s), make(hide_rl2s=hide_rl2s)
    obs, rl2s = observations(2, 5)
    real = {key: torch.cat([value[0], value[1, :3]]).unsqueeze(0) for key, value in obs.items()}
    real_rl2s = torch.cat([rl2s[0], rl2s[1, :3]]).unsqueeze(0)
    for value in (*obs.values(), rl2s):
        value[1, 3:] = int(MAGIC_PAD_VAL)
    out, expected = padded(obs, rl2s), whole(real, real_rl2s)
    torch.testing.assert_close(torch.cat([out[0], out[1, :3]]).unsqueeze(0), expected, atol=1e-5, rtol=1e-4)
    for name, buffer in padded.named_buffers():
        torch.testing.assert_close(buffer, dict(whole.named_buffers())[name])
    assert padded.obs_encoders["joints_encoder"].in_norm._t == 2.0
    assert out.isfinite().all()


class TestTokens:
    """Sequences of integers with a meaning."""

    def features(self, low=-2, high=7, length=4):
        torch.manual_seed(0)
        return TokenFeatures(ArraySpec((length,), "int64", low, high)).eval()

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64])
    def test_tokens_out_of_bounds_have_embedding_row_0(self, dtype):
        limits = torch.iinfo(dtype)
        tokens = torch.tensor([limits.min, 8, 100, limits.max], dtype=dtype)
        expected = [1 + 2 if dtype is torch.uint8 else 0, 0, 0, 0]
        assert self.features().rows_of(tokens).tolist() == expected

    def test_order_matters(self):
        features = self.features()
        forwards = torch.tensor([[[0, 1, 2, 3]]])
        assert not torch.isclose(features(forwards), features(forwards.flip(-1))).all()

    def test_repeated_timesteps_are_encoded_as_if_each_were_alone(self):
        features = self.features()
        tokens = torch.randint(-2, 8, (3, 1, 4)).repeat(1, 6, 1)
        tokens[1, 3:] = 0
        tokens[2, 5, 0] = 100
        alone = torch.stack([features(row[None, None])[0, 0] for row in tokens.flatten(0, 1)])
        torch.testing.assert_close(features(tokens).flatten(0, 1), alone)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (ArraySpec((4,), "int64"), r"need bounds.*ArraySpec\(\(4,\), 'int64', low=0"),
            (ArraySpec((4,), "int64", 0, 2**40), "too many to embed"),
        ],
    )
    def test_unbounded_and_huge_vocabularies_are_refused(self, spec, message):
        with pytest.raises(ValueError, match=message):
            TokenFeatures(spec)


class TestImages:
    """Layout, scaling, network and augmentation of images."""

    @pytest.mark.parametrize(
        ("shape", "first"),
        [
            ((64, 64, 3), False),
            ((3, 64, 64), True),
            ((48, 64, 3), False),
            ((3, 48, 64), True),
            ((12, 64, 64), True),
            ((20, 7, 7), True),
            ((7, 7, 20), False),
            ((8, 8, 8), False),
            ((5, 6, 5), False),
        ],
    )
    def test_image_layout_is_inferred_from_the_shape(self, shape, first):
        assert channels_come_first(shape) == first

    @pytest.mark.parametrize(
        "space",
        [
            spaces.Box(0.0, 1.0, (36, 36, 3)),
            spaces.Box(-1.0, 1.0, (36, 36, 3)),
            spaces.Box(0, 10, (36, 36, 3), np.uint8),
        ],
        ids=str,
    )
    def test_values_are_scaled_by_the_bounds_of_the_space(self, space):
        features = ImageFeatures(space)
        low, high = torch.from_numpy(space.low)[None, None], torch.from_numpy(space.high)[None, None]
        for imgs, scaled in ((low, -1.0), (high, 1.0)):
            expected = features.cnn(torch.full(imgs.shape, scaled), from_float=True)
            torch.testing.assert_close(features(imgs), features.activation(features.linear(expected)))

    def test_augmentation_shifts_a_share_of_the_batch_in_training_only(self):
        torch.manual_seed(0)
        features = ImageFeatures((40, 40, 3), drqv2_aug=True)
        imgs = torch.randint(0, 256, (8, 2, 40, 40, 3), dtype=torch.uint8)
        augmented = features(imgs)
        clean = features.eval()(imgs)
        same = torch.isclose(augmented, clean, atol=1e-6).flatten(1).all(1)
        assert same.tolist() == [True, True] + [False] * 6


class Doubled(nn.Module):
    """What a user may write: made from a space, twice as many features as there are numbers."""

    def __init__(self, space):
        super().__init__()
        self.space = space

    def forward(self, x):
        return torch.cat([x, x], dim=-1)


class TestChoices:
    """`encoders`, in Python and in gin."""

    def test_encoders_are_names_networks_callables_or_ignored(self):
        encoder = make(
            encoders={
                "camera": IMPALAishCNN,
                "instruction": "vector",
                "joints": Doubled,
                "speed": "ignore",
            }
        )
        parts = encoder.obs_encoders
        assert set(parts) == {"camera_encoder", "instruction_encoder", "joints_encoder"}
        assert isinstance(parts["camera_encoder"].cnn, IMPALAishCNN)
        assert isinstance(parts["instruction_encoder"], VectorFeatures)
        assert parts["joints_encoder"].space is SPACE["joints"]
        assert encoder.merge.in_layer.in_features == 256 + 64 + 10 + 32
        obs, rl2s = observations(2, 3)
        del obs["speed"]
        assert encoder(obs, rl2s).shape == (2, 3, 256)

    def test_arrays_of_other_shapes_can_be_flattened_or_read_as_tokens(self):
        space = {"points": (4, 3), "board": ArraySpec((8, 8), "int8", low=-6, high=6)}
        encoder = make(space, encoders={"points": "vector", "board": "tokens"})
        obs = {
            "points": torch.randn(2, 3, 4, 3),
            "board": torch.randint(-6, 7, (2, 3, 8, 8), dtype=torch.int8),
        }
        assert encoder(obs, torch.zeros(2, 3, 4)).shape == (2, 3, 256)

    def test_gin_sets_all_encoders_of_a_kind_and_scopes_set_one(self):
        gin.parse_config("""
            MultiModalTstepEncoder.encoders = {"back": @rear/ImageFeatures, "state": "ignore", "up": @GridworldCNN}
            rear/ImageFeatures.d_output = 8
            ImageFeatures.drqv2_aug = True
            VectorFeatures.d_hidden = 7
        """)
        shape = (40, 40, 3)
        space = {"front": shape, "back": shape, "up": shape, "state": (3,), "joints": (3,)}
        parts = make(space).obs_encoders
        assert set(parts) == {"front_encoder", "back_encoder", "up_encoder", "joints_encoder"}
        assert [parts[f"{name}_encoder"].emb_dim for name in ("front", "back", "up")] == [256, 8, 256]
        assert isinstance(parts["up_encoder"].cnn, GridworldCNN)
        assert all(parts[f"{name}_encoder"].augment is not None for name in ("front", "back", "up"))
        assert parts["joints_encoder"].mlp.in_layer.out_features == 7


@pytest.mark.parametrize(
    ("space", "encoders", "message"),
    [
        ({"image": (40, 40, 3)}, {"imag": "image"}, "'imag'.*Did you mean 'image'"),
        (
            {"text": (4,)},
            {"text": "token"},
            "'text': unknown encoder 'token'.*Did you mean 'tokens'",
        ),
        (
            {"points": (4, 3)},
            {},
            r"'points' has shape \(4, 3\).*encoders=\{'points': ...\} with 'vector'",
        ),
        ({"a": (3,)}, {"a": "ignore"}, "at least one of a; all are ignored"),
        ({"text": (4,)}, {"text": "tokens"}, "'text': tokens need bounds"),
        (
            {"vec": (4,)},
            {"vec": "image"},
            r"'vec': an image must have three axes, got shape \(4,\)",
        ),
    ],
)
def test_encoders_that_do_not_fit_are_named(space, encoders, message):
    with pytest.raises(ValueError, match=message):
        make(space, encoders=encoders)
