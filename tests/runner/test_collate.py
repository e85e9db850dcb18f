"""Samples of unequal length as one padded batch."""

import numpy as np
import pytest
import torch

from amago.loading import MAGIC_PAD_VAL, RLData, RLData_pad_collate


@pytest.fixture
def samples(make_traj) -> list[RLData]:
    return [RLData(make_traj(length, number)) for number, length in enumerate([3, 5, 1])]


def test_shapes_and_dtypes(samples) -> None:
    batch = RLData_pad_collate(samples)
    assert batch.obs["observation"].shape == (3, 6, 2)
    assert batch.rl2s.shape == (3, 6, 3)
    assert batch.time_idxs.shape == (3, 6, 1)
    assert batch.rews.shape == (3, 5, 1)
    assert batch.dones.shape == (3, 5, 1)
    assert batch.actions.shape == (3, 5, 2)
    assert batch.dones.dtype == torch.bool
    assert batch.time_idxs.dtype == torch.int64


def test_rows_hold_their_sample_before_the_padding(samples) -> None:
    batch = RLData_pad_collate(samples)
    for row, sample in enumerate(samples):
        transitions = len(sample)
        np.testing.assert_array_equal(
            batch.obs["observation"][row, : transitions + 1].numpy(), sample.obs["observation"]
        )
        np.testing.assert_array_equal(batch.rl2s[row, : transitions + 1].numpy(), sample.rl2s)
        np.testing.assert_array_equal(batch.rews[row, :transitions].numpy(), sample.rews)
        np.testing.assert_array_equal(batch.dones[row, :transitions].numpy(), sample.dones)


def test_padding_is_4_and_done(samples) -> None:
    batch = RLData_pad_collate(samples)
    assert MAGIC_PAD_VAL == 4.0
    for padded in (
        batch.obs["observation"][0, 4:],
        batch.rl2s[0, 4:],
        batch.rews[0, 3:],
        batch.time_idxs[0, 4:],
    ):
        assert padded.numel() > 0
        assert (padded == MAGIC_PAD_VAL).all()
    assert batch.dones[0, 3:].all()


def test_lengths_count_real_timesteps_and_the_masks_follow(samples) -> None:
    batch = RLData_pad_collate(samples)
    assert batch.lengths is not None
    assert batch.lengths.tolist() == [4, 6, 2]
    assert batch.timestep_mask.sum(dim=(1, 2)).tolist() == [4, 6, 2]
    assert batch.transition_mask.sum(dim=(1, 2)).tolist() == [3, 5, 1]


def test_flat_indices_are_those_of_real_transitions(samples) -> None:
    batch = RLData_pad_collate(samples)
    assert batch.flat_idxs is not None
    assert batch.flat_idxs.tolist() == batch.transition_mask.flatten().nonzero().flatten().tolist()


def test_a_sequence_that_holds_the_filler_itself_is_not_taken_for_padding(make_traj) -> None:
    traj = make_traj(3)
    traj.rl2s[:] = MAGIC_PAD_VAL
    batch = RLData_pad_collate([RLData(traj)])
    assert batch.timestep_mask.all()


def test_observations_keep_their_dtype() -> None:
    image = np.full((3, 8, 8, 3), 200, dtype=np.uint8)
    data = RLData({"img": image}, np.zeros((2, 1)), np.zeros((2, 1)), np.zeros((2, 2)), np.zeros((3, 1)))
    batch = RLData_pad_collate([data, data.random_slice(1)])
    assert batch.obs["img"].dtype == torch.uint8
    assert (batch.obs["img"][1, 2:] == 4).all()


def test_the_batch_does_not_share_memory_with_its_samples(samples) -> None:
    batch = RLData_pad_collate(samples)
    samples[0].rews[:] = -1
    assert (batch.rews[0, :3] > 0).all()


def test_samples_with_different_observations_are_an_error_that_names_them(samples, make_traj) -> None:
    other = RLData(make_traj(2))
    other.obs["goal"] = other.obs.pop("observation")
    with pytest.raises(ValueError, match="goal"):
        RLData_pad_collate([samples[0], other])
    wider = RLData(make_traj(2))
    wider.obs["observation"] = np.zeros((3, 7), dtype=np.float32)
    with pytest.raises(ValueError, match="obs\\['observation'\\]"):
        RLData_pad_collate([samples[0], wider])
    with pytest.raises(ValueError, match="samples"):
        RLData_pad_collate([])
