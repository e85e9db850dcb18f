"""What a run draws depends on its seed alone, and torch's global generator keeps the user's state."""

import contextlib

import pytest
import torch

from amago.experiment.random_streams import RandomStreams

CPU = torch.device("cpu")


def draw(streams: RandomStreams, epoch: int) -> list[float]:
    with streams.acting(epoch):
        return torch.rand(3).tolist()


def test_streams_of_seeds_ranks_epochs_and_purposes_differ() -> None:
    base = RandomStreams(5, 0, CPU)
    drawn = [
        draw(base, 0),
        draw(base, 1),
        draw(RandomStreams(6, 0, CPU), 0),
        draw(RandomStreams(5, 1, CPU), 0),
    ]
    with base.learning(0):
        drawn.append(torch.rand(3).tolist())
    with base.evaluating(0):
        drawn.append(torch.rand(3).tolist())
    assert len({tuple(numbers) for numbers in drawn}) == len(drawn)


def test_every_rank_starts_from_the_same_weights() -> None:
    drawn = []
    for rank in range(2):
        with RandomStreams(5, rank, CPU).initializing():
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_a_missing_seed_is_drawn_and_recorded() -> None:
    first, second = RandomStreams(None, 0, CPU), RandomStreams(None, 0, CPU)
    assert first.seed != second.seed
    assert draw(first, 0) == draw(RandomStreams(first.seed, 0, CPU), 0)


@pytest.mark.parametrize("fails", [False, True])
def test_the_global_torch_generator_is_restored(fails: bool) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with contextlib.suppress(RuntimeError), RandomStreams(5, 0, CPU).acting(0):
        torch.rand(10)
        if fails:
            raise RuntimeError
    assert torch.equal(torch.get_rng_state(), before)


def test_every_evaluation_has_its_own_seed() -> None:
    streams = RandomStreams(5, 0, CPU)
    seeds = [streams.eval_seed(epoch) for epoch in range(50)]
    seeds += [streams.eval_seed(streams.next_test()) for _ in range(50)]
    assert len(set(seeds)) == len(seeds)
