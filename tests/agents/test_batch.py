"""The training batch: masks from lengths or from the filler, and moving it."""

import torch


def test_masks_follow_from_the_lengths(make_batch):
    batch = make_batch(lengths=(5, 3, 1))
    assert batch.timestep_mask[..., 0].tolist() == [
        [True] * 5,
        [True] * 3 + [False] * 2,
        [True] + [False] * 4,
    ]
    assert batch.transition_mask[..., 0].tolist() == [[True] * 4, [True] * 2 + [False] * 2, [False] * 4]
    assert batch.real_transitions().tolist() == [0, 1, 2, 3, 4, 5]


def test_masks_without_lengths_follow_from_the_fill_value(make_batch):
    batch = make_batch(lengths=(9, 7, 6))
    expected = batch.timestep_mask
    batch.lengths = None
    assert torch.equal(batch.timestep_mask, expected)


def test_lengths_take_precedence_over_the_fill_value(make_batch):
    batch = make_batch(lengths=(9, 7))
    batch.rl2s[0, 4] = 4.0
    assert bool(batch.timestep_mask[0, 4])


def test_every_tensor_moves(make_batch):
    batch = make_batch().to("meta")
    tensors = [
        *batch.obs.values(),
        batch.rl2s,
        batch.rews,
        batch.dones,
        batch.actions,
        batch.time_idxs,
        batch.lengths,
    ]
    assert all(tensor.device.type == "meta" for tensor in tensors)
