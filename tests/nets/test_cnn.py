"""Convolutional networks: layout, scaling, initialisation and random shifts."""

import pytest
import torch
from torch import nn

from amago.nets.cnn import CNN, DrQv2Aug, GridworldCNN, IMPALAishCNN, NatureishCNN, weight_init


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
        (lambda: NatureishCNN((40, 40), False, "relu"), r"\(H, W, C\) or \(C, H, W\), got \(40, 40\)"),
        (lambda: IMPALAishCNN((40, 40, 3), False, "relu", cnn_block_depths=[6]), r"multiples of 4.*\[6\]"),
        (
            lambda: GridworldCNN((8, 8, 3), False, "relu")(torch.zeros(1, 1, 3, 8, 8)),
            r"end in shape \(8, 8, 3\)",
        ),
        (lambda: DrQv2Aug(-1, channels_first=False), "pad must be at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
