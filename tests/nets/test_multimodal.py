"""Images, vectors and token sequences in one observation: which encoder each gets, and what must not matter."""

from functools import partial

import gin
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from amago.nets.cnn import DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN
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
def test_the_encoder_goes_by_the_space(space, kind):
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
def test_the_encoder_that_suits_the_observations_is_built_without_a_setting(space, name):
    assert tstep_encoder_for(space) == name
    get_tstep_encoder_cls(name)(obs_space=space, rl2_space=(3,))


def test_every_observation_has_its_own_encoder():
    encoder = make()
    kinds = {name: type(part) for name, part in encoder.obs_encoders.items()}
    assert kinds == {
        "camera_encoder": ImageFeatures,
        "instruction_encoder": TokenFeatures,
        "joints_encoder": VectorFeatures,
        "speed_encoder": VectorFeatures,
    }
    obs, rl2s = observations(2, 3)
    assert encoder(obs=obs, rl2s=rl2s).shape == (2, 3, encoder.emb_dim)


def test_gradients_reach_every_parameter():
    encoder = make()
    obs, rl2s = observations(4, 3)
    encoder(obs, rl2s)[..., 0].sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_every_observation_and_rl2s_change_the_result():
    encoder = make().eval()
    obs, rl2s = observations(2, 3)
    before = encoder(obs, rl2s)
    others, other_rl2s = observations(2, 3)
    for key in obs:
        assert not torch.isclose(encoder({**obs, key: others[key]}, rl2s), before).all(-1).any(), key
    assert not torch.isclose(encoder(obs, other_rl2s), before).all(-1).any()


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


def test_a_row_does_not_depend_on_the_others():
    encoder = make().eval()
    obs, rl2s = observations(3, 4)
    alone = encoder({key: value[1:2] for key, value in obs.items()}, rl2s[1:2])
    torch.testing.assert_close(encoder(obs, rl2s)[1:2], alone)


def test_a_sequence_is_encoded_as_its_timesteps_are():
    encoder = make().eval()
    obs, rl2s = observations(2, 4)
    steps = [
        encoder({key: value[:, t : t + 1] for key, value in obs.items()}, rl2s[:, t : t + 1])
        for t in range(4)
    ]
    torch.testing.assert_close(encoder(obs, rl2s), torch.cat(steps, dim=1))


def test_it_computes_in_bfloat16_autocast():
    encoder = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = encoder(*observations(2, 3))
    assert out.isfinite().all()
    out.float().sum().backward()


def test_weights_load_into_another_encoder():
    first = make()
    second = MultiModalTstepEncoder(SPACE, (1 + ACTION_WIDTH,))
    second.load_state_dict(first.state_dict(), strict=True)
    obs, rl2s = observations(1, 2)
    assert torch.equal(first.eval()(obs, rl2s), second.eval()(obs, rl2s))


def test_keys_of_any_spelling_name_their_encoder():
    keys = ["values", "type", "a.b", "outer/inner"]
    encoder = make(dict.fromkeys(keys, (2,)))
    assert {f"obs_encoders.{key.replace('.', '/')}_encoder.in_norm.mu" for key in keys} <= set(
        encoder.state_dict()
    )
    encoder({key: torch.zeros(1, 1, 2) for key in keys}, torch.zeros(1, 1, 4))


def test_activations_of_every_part_are_logged():
    log = {}
    make()(*observations(1, 2), log_dict=log)
    assert {f"activation-{key}-std" for key in [*SPACE, "tstep_encoder"]} <= set(log)


class TestTokens:
    """Sequences of integers with a meaning."""

    def features(self, low=-2, high=7, length=4):
        torch.manual_seed(0)
        return TokenFeatures(ArraySpec((length,), "int64", low, high)).eval()

    def test_each_token_has_a_row_of_its_own(self):
        rows = self.features().rows_of(torch.arange(-2, 8))
        assert rows.tolist() == list(range(1, 11))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int64])
    def test_values_out_of_bounds_share_the_row_that_means_nothing(self, dtype):
        limits = torch.iinfo(dtype)
        tokens = torch.tensor([limits.min, 8, 100, limits.max], dtype=dtype)
        expected = [1 + 2 if dtype is torch.uint8 else 0, 0, 0, 0]
        assert self.features().rows_of(tokens).tolist() == expected

    def test_the_row_that_means_nothing_is_zero_until_it_is_learned(self):
        features = self.features()
        assert not features.embedding.weight[0].any()
        assert features.embedding.weight[1:].any(dim=1).all()
        features(torch.full((1, 1, 4), 100)).sum().backward()
        assert features.embedding.weight.grad[0].any()
        assert not features.embedding.weight.grad[1:].any()

    def test_tokens_that_arrive_as_floats_are_the_same(self):
        features = self.features()
        tokens = torch.tensor([[[-2.0, 7.0, 100.0, float("nan")]]])
        assert features.rows_of(tokens).tolist() == [[[1, 10, 0, 0]]]

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

    def test_where_looking_for_repeats_would_mean_waiting_every_timestep_is_encoded(self):
        tokens = torch.zeros(2, 3, 4, dtype=torch.int64, device="meta")
        assert self.features().to("meta")(tokens).shape == (2, 3, 64)

    def test_no_timestep_at_all_gives_no_vector(self):
        assert self.features()(torch.zeros(0, 3, 4, dtype=torch.long)).shape == (0, 3, 64)

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (ArraySpec((4,), "int64"), r"need bounds.*ArraySpec\(\(4,\), 'int64', low=0"),
            (ArraySpec((4,), "int64", 0, 2**40), "too many to embed"),
        ],
    )
    def test_a_vocabulary_that_cannot_be_is_refused(self, spec, message):
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
    def test_the_shape_tells_the_layout(self, shape, first):
        assert channels_come_first(shape) == first

    def test_the_layout_can_be_given(self):
        features = ImageFeatures((20, 24, 40), channels_first=True)
        assert features.cnn.in_channels == 20
        assert features(torch.zeros(2, 3, 20, 24, 40)).shape == (2, 3, features.emb_dim)

    def test_both_layouts_give_the_same_features(self):
        last, first = ImageFeatures((40, 40, 3)), ImageFeatures((3, 40, 40))
        first.load_state_dict(last.state_dict())
        imgs = torch.randint(0, 256, (2, 3, 40, 40, 3), dtype=torch.uint8)
        torch.testing.assert_close(first(imgs.permute(0, 1, 4, 2, 3)), last(imgs))

    @pytest.mark.parametrize(
        ("shape", "network"),
        [
            ((36, 36, 3), NatureishCNN),
            ((3, 84, 84), NatureishCNN),
            ((35, 50, 3), GridworldCNN),
            ((7, 7, 3), GridworldCNN),
        ],
    )
    def test_small_images_get_the_network_for_gridworlds(self, shape, network):
        assert type(ImageFeatures(shape).cnn) is network

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

    @pytest.mark.parametrize("space", [(36, 36, 3), spaces.Box(0, 255, (36, 36, 3), np.uint8)], ids=str)
    def test_pixels_are_scaled_as_the_image_encoder_does(self, space):
        features = ImageFeatures(space)
        imgs = torch.randint(0, 256, (1, 2, 36, 36, 3), dtype=torch.uint8)
        expected = features.activation(features.linear(features.cnn(imgs)))
        torch.testing.assert_close(features(imgs), expected)
        torch.testing.assert_close(features(imgs.float()), expected)

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

    def test_a_name_a_network_a_callable_or_nothing(self):
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

    def test_settings_of_one_encoder_alone(self):
        space = {"front": (40, 40, 3), "back": (40, 40, 3)}
        encoder = make(space, encoders={"back": partial(ImageFeatures, cnn_type=DrQCNN, d_output=8)})
        assert isinstance(encoder.obs_encoders["front_encoder"].cnn, NatureishCNN)
        assert isinstance(encoder.obs_encoders["back_encoder"].cnn, DrQCNN)
        assert encoder.obs_encoders["back_encoder"].emb_dim == 8

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

    def test_a_single_array_is_the_observation(self):
        encoder = make(spaces.Box(0, 255, (9, 9, 3), np.uint8), encoders={"observation": ImageFeatures})
        assert encoder.obs_shapes == {"observation": (9, 9, 3)}

    def test_a_module_of_the_user_keeps_its_mode_while_its_width_is_found_out(self):
        seen = []

        class Watched(Doubled):
            def forward(self, x):
                seen.append((self.training, x.dtype, x.shape))
                return super().forward(x)

        encoder = make({"a": ArraySpec((3,), "int16", low=5, high=9)}, encoders={"a": Watched})
        assert seen == [(False, torch.int16, (1, 1, 3))]
        assert encoder.obs_encoders["a_encoder"].training

    def test_it_is_found_by_name(self):
        assert get_tstep_encoder_cls("multimodal") is MultiModalTstepEncoder


@pytest.mark.parametrize(
    ("space", "encoders", "error", "message"),
    [
        ({"image": (40, 40, 3)}, {"imag": "image"}, ValueError, "'imag'.*Did you mean 'image'"),
        (
            {"text": (4,)},
            {"text": "token"},
            ValueError,
            "'text': unknown encoder 'token'.*Did you mean 'tokens'",
        ),
        (
            {"points": (4, 3)},
            {},
            ValueError,
            r"'points' has shape \(4, 3\).*encoders=\{'points': ...\} with 'vector'",
        ),
        ({"voxels": (2, 3, 4, 5)}, {}, ValueError, r"'voxels' has shape \(2, 3, 4, 5\)"),
        ({"a": (3,)}, {"a": "ignore"}, ValueError, "at least one of a; all are ignored"),
        ({"text": (4,)}, {"text": "tokens"}, ValueError, "'text': tokens need bounds"),
        (
            {"vec": (4,)},
            {"vec": "image"},
            ValueError,
            r"'vec': an image must have three axes, got shape \(4,\)",
        ),
        ({"cell": (3, 3, 2)}, {}, ValueError, "'cell': images of .* too small for GridworldCNN"),
        (
            {"img": (9, 9, 3)},
            {"img": NatureishCNN},
            ValueError,
            "'img': images of .* too small for NatureishCNN",
        ),
        (
            {"img": (40, 44, 3)},
            {"img": partial(ImageFeatures, drqv2_aug=True)},
            ValueError,
            "'img': drqv2_aug needs square images, got 40 x 44",
        ),
        (
            {"img": (40, 40, 3)},
            {"img": partial(ImageFeatures, aug_pct_of_batch=75)},
            ValueError,
            "'img': aug_pct_of_batch must be a share",
        ),
        ({"a": (3,)}, {"a": 3}, TypeError, "'a': its encoder must be a name, a CNN or a callable, got 3"),
        ({"a": (3,)}, {"a": lambda space: None}, TypeError, "'a': .* must return a torch.nn.Module, got None"),
        (
            {"a": (3,)},
            {"a": lambda space: nn.Flatten()},
            ValueError,
            r"'a': Flatten must map .* to \(1, 3\)",
        ),
        ({"a.b": (3,), "a/b": (3,)}, {}, ValueError, "'a/b' has the name of another one"),
    ],
)
def test_what_cannot_be_names_the_observation_and_the_remedy(space, encoders, error, message):
    with pytest.raises(error, match=message):
        make(space, encoders=encoders)
