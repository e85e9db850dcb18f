"""Convolutional networks: layout, scaling, initialisation and random shifts."""

import math

import pytest
import torch
from torch import nn

from amago.nets.cnn import CNN, DrQCNN, DrQv2Aug, GridworldCNN, IMPALAishCNN, NatureishCNN, weight_init

NETWORKS = [DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN]


@pytest.mark.parametrize("network", NETWORKS)
def test_both_layouts_give_the_same_features(network):
    torch.manual_seed(0)
    last = network(img_shape=(40, 36, 3), channels_first=False, activation="relu")
    first = network(img_shape=(3, 40, 36), channels_first=True, activation="relu")
    first.load_state_dict(last.state_dict())
    imgs = torch.randint(0, 256, (2, 3, 40, 36, 3), dtype=torch.uint8)
    torch.testing.assert_close(first(imgs.permute(0, 1, 4, 2, 3)), last(imgs))


@pytest.mark.parametrize("network", NETWORKS)
def test_the_blank_image_tells_the_size_of_the_output(network):
    cnn = network((40, 40, 3), False, "leaky_relu")
    width = cnn(cnn.blank_img).shape[-1]
    assert cnn(torch.zeros(2, 5, 40, 40, 3)).shape == (2, 5, width)
    maps = cnn(torch.zeros(2, 5, 40, 40, 3), flatten=False)
    assert maps.dim() == 5
    assert maps[0, 0].numel() == width


def test_pixels_are_scaled_to_plus_minus_one_unless_they_are_floats_already():
    cnn = GridworldCNN((8, 8, 3), False, "relu")
    pixels = torch.randint(0, 256, (2, 3, 8, 8, 3), dtype=torch.uint8)
    torch.testing.assert_close(cnn(pixels), cnn(pixels.float() / 128.0 - 1.0, from_float=True))


@pytest.mark.parametrize("network", [DrQCNN, NatureishCNN])
def test_pixel_networks_start_delta_orthogonal(network):
    for conv in network((40, 40, 3), False, "leaky_relu").children():
        if isinstance(conv, nn.Conv2d):
            centre = conv.weight[:, :, conv.kernel_size[0] // 2, conv.kernel_size[1] // 2].detach().clone()
            rows = centre if centre.shape[0] <= centre.shape[1] else centre.T
            gain = 2.0 / (1.0 + 0.01**2)
            torch.testing.assert_close(rows @ rows.T, gain * torch.eye(len(rows)), atol=1e-5, rtol=1e-4)
            assert conv.weight.detach().square().sum().item() == pytest.approx(centre.square().sum().item())
            assert not conv.bias.any()


@pytest.mark.parametrize("network", [GridworldCNN, IMPALAishCNN])
def test_other_networks_start_with_torch_defaults(network):
    conv = next(m for m in network((40, 40, 3), False, "leaky_relu").modules() if isinstance(m, nn.Conv2d))
    bound = 1.0 / math.sqrt(conv.weight[0].numel())
    assert 0.9 * bound < conv.weight.abs().max() <= bound
    assert conv.bias.any()


def test_weight_init_leaves_linear_layers_alone():
    linear = nn.Linear(3, 4)
    before = linear.weight.clone()
    weight_init(linear)
    assert torch.equal(linear.weight, before)


def test_shifts_are_whole_pixels_with_a_repeated_border():
    """Each image is its own coordinates, so that a shift can be read off every pixel."""
    torch.manual_seed(0)
    size, pad = 12, 4
    rows = torch.arange(size, dtype=torch.uint8)[:, None].expand(size, size)
    imgs = torch.stack([rows, rows.T, rows], -1).expand(50, 2, size, size, 3)
    shifted = DrQv2Aug(pad, channels_first=False)(imgs).long()
    assert shifted.shape == imgs.shape
    shift_rows = shifted[..., 6, 6, 0] - 6
    shift_columns = shifted[..., 6, 6, 1] - 6
    positions = torch.arange(size)
    expected_rows = (positions + shift_rows[..., None]).clamp(0, size - 1)
    expected_columns = (positions + shift_columns[..., None]).clamp(0, size - 1)
    assert torch.equal(shifted[..., 0], expected_rows[..., :, None].expand(50, 2, size, size))
    assert torch.equal(shifted[..., 1], expected_columns[..., None, :].expand(50, 2, size, size))
    assert set(shift_rows.flatten().tolist()) == set(range(-pad, pad + 1))
    assert not torch.equal(shift_rows[:, 0], shift_rows[:, 1])


def test_shifts_keep_layout_and_dtype():
    torch.manual_seed(0)
    imgs = torch.randint(0, 256, (2, 3, 3, 9, 9), dtype=torch.uint8)
    torch.manual_seed(1)
    first = DrQv2Aug(2, channels_first=True)(imgs)
    torch.manual_seed(1)
    last = DrQv2Aug(2, channels_first=False)(imgs.permute(0, 1, 3, 4, 2))
    assert first.dtype == torch.uint8
    assert torch.equal(first, last.permute(0, 1, 4, 2, 3))


def test_group_norm_can_be_left_out():
    cnn = IMPALAishCNN((24, 24, 3), False, "relu", cnn_block_depths=[6, 10], post_group_norm=False)
    assert not any(isinstance(m, nn.GroupNorm) for m in cnn.modules())
    assert cnn(cnn.blank_img).isfinite().all()


def test_a_user_network_only_needs_conv_forward():
    class Pooled(CNN):
        """Mean colour."""

        def conv_forward(self, imgs):
            return imgs.mean((2, 3), keepdim=True)

    cnn = Pooled(img_shape=(8, 8, 3), channels_first=False, activation="relu")
    torch.testing.assert_close(cnn(torch.full((1, 2, 8, 8, 3), 128.0)), torch.zeros(1, 2, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: NatureishCNN((20, 20, 3), False, "relu"),
            r"\(20, 20\) pixels are too small for NatureishCNN",
        ),
        (lambda: NatureishCNN((40, 40), False, "relu"), r"\(H, W, C\) or \(C, H, W\), got \(40, 40\)"),
        (lambda: GridworldCNN((8, 8, 3), False, "relu", channels=[8]), r"equal lengths, got \[8\]"),
        (lambda: IMPALAishCNN((40, 40, 3), False, "relu", cnn_block_depths=[6]), r"multiples of 4.*\[6\]"),
        (lambda: IMPALAishCNN((8, 8, 3), False, "relu"), "too small for IMPALAishCNN"),
        (
            lambda: IMPALAishCNN((4, 4, 3), False, "relu", cnn_block_depths=[4]),
            "post_group_norm makes a constant",
        ),
        (
            lambda: GridworldCNN((8, 8, 3), False, "relu")(torch.zeros(1, 1, 3, 8, 8)),
            r"end in shape \(8, 8, 3\)",
        ),
        (lambda: DrQv2Aug(-1, channels_first=False), "pad must not be negative, got -1"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
