"""The benchmark's count of floating-point operations equals what torch counts while the agents run."""

import dataclasses
from typing import NamedTuple

import pytest
from benchmarks.flops import Workload, count_update
from benchmarks.workloads import WORKLOADS, make_agent, make_batch
from torch.utils.flop_counter import FlopCounterMode

BATCHED = ("aten.bmm", "aten.baddbmm")  # attention and the power iterations of SigmaReparam


class Counted(NamedTuple):
    """Floating-point operations of one update, by torch."""

    total: int
    layers: int  # without batched products


def counted(work: Workload) -> Counted:
    agent, batch = make_agent(work).train(), make_batch(work)
    with FlopCounterMode(display=False) as counter:
        agent(batch, log_step=False).backward()
    by_operation = {str(name): flop for name, flop in counter.get_flop_counts()["Global"].items()}
    total = sum(by_operation.values())
    return Counted(total, total - sum(by_operation.get(name, 0) for name in BATCHED))


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_update_takes_the_operations_that_are_counted(name):
    work = dataclasses.replace(WORKLOADS[name], batch_size=3, length=20)
    ours, theirs = count_update(work), counted(work)
    assert sum(ours.values()) - ours["attention"] == theirs.layers
    assert sum(ours.values()) == pytest.approx(theirs.total, rel=0.01)


def test_attention_counts_the_pairs_that_a_causal_mask_leaves():
    work = Workload(action_dim=2, discrete=True, batch_size=1, length=4, layers=1)
    pairs, width = 1 + 2 + 3 + 4, 256
    # Scores and sums over values; scores again and two gradients of each product in the backward pass.
    assert count_update(work)["attention"] == 2 * pairs * width * (2 + 5)
