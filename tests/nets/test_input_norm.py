"""Running input statistics: golden numbers, and everything that must not enter them."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist

from amago.nets.masking import MAGIC_PAD_VAL, timestep_mask
from amago.nets.utils import InputNorm


def test_three_updates_equal_the_golden_numbers(torch_golden, assert_forward):
    case = torch_golden("input_norm")
    t = case.tensors
    norm = InputNorm(case.args["dim"], beta=case.args["beta"])
    norm.load_state_dict({key: t[f"state0.{key}"] for key in ("_t", "mu", "nu")}, strict=True)
    for x, y in zip(t["xs"], t["ys"], strict=True):
        norm.update_stats(x)
        assert_forward(norm(x), y)
    for key, value in norm.state_dict().items():
        assert_forward(value, t[f"state3.{key}"])


def test_skip_returns_inputs_but_updates_statistics():
    norm = InputNorm(2, skip=True)
    x = torch.full((1, 3, 2), 7.0)
    norm.update_stats(x)
    assert torch.equal(norm(x), x)
    assert norm.mu[0] > 3.0


def naive_update(norm, val):
    """The fault: whatever the batch holds goes into the averages, and a mean over nothing is NaN."""
    mask = ~(val == MAGIC_PAD_VAL).all(-1, keepdim=True)
    t = norm._t + 1
    step = norm.beta / (1.0 - (1.0 - norm.beta) ** t)
    norm._t.copy_(t)
    norm.mu.copy_((1.0 - step) * norm.mu + step * (val * mask).sum((0, 1)) / mask.sum())
    norm.nu.copy_((1.0 - step) * norm.nu + step * (val.square() * mask).sum((0, 1)) / mask.sum())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_a_timestep_with_a_non_finite_feature_is_left_out(bad):
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3)
    clean, hit, faulty = InputNorm(3), InputNorm(3), InputNorm(3)
    clean.update_stats(torch.cat([x[0], x[1, :4]]).unsqueeze(0))
    x[1, 4, 1] = bad
    hit.update_stats(x)
    torch.testing.assert_close(hit.mu, clean.mu)
    torch.testing.assert_close(hit.nu, clean.nu)
    naive_update(faulty, x)
    assert not (faulty.mu.isfinite().all() and faulty.nu.isfinite().all())


def test_a_batch_without_real_timesteps_changes_nothing():
    norm, faulty = InputNorm(3), InputNorm(3)
    norm.update_stats(torch.randn(2, 4, 3))
    before = {key: value.clone() for key, value in norm.state_dict().items()}
    padding = torch.full((2, 4, 3), MAGIC_PAD_VAL)
    norm.update_stats(padding)
    with timestep_mask(torch.zeros(2, 4, 1, dtype=torch.bool)):
        norm.update_stats(torch.randn(2, 4, 3))
    norm.update_stats(torch.full((2, 4, 3), float("nan")))
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())
    naive_update(faulty, padding)
    assert faulty.mu.isnan().all()


def test_the_batch_mask_decides_what_is_padding():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3)
    mask = torch.ones(2, 5, 1, dtype=torch.bool)
    mask[1, 2:] = False
    masked, cut = InputNorm(3), InputNorm(3)
    with timestep_mask(mask):
        masked.update_stats(x)
    cut.update_stats(torch.cat([x[0], x[1, :2]]))
    torch.testing.assert_close(masked.mu, cut.mu)
    torch.testing.assert_close(masked.nu, cut.nu)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        InputNorm(0)
    with pytest.raises(ValueError, match=r"beta must be below 1, got 1\.5"):
        InputNorm(3, beta=1.5)


def update_in_one_of_two_processes(rank, folder):
    """Process `rank` sees 3 - rank timesteps of value 1 + rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    norm = InputNorm(2)
    norm.update_stats(torch.full((1, 3 - rank, 2), 1.0 + rank))
    torch.save(norm.state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_all_processes_hold_the_statistics_of_all_batches(tmp_path):
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=update_in_one_of_two_processes, args=(rank, tmp_path)) for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    alone = InputNorm(2)
    alone.update_stats(torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0]).reshape(1, 5, 1).expand(1, 5, 2))
    for rank in range(2):
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(state[key], value)
