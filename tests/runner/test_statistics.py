"""Interquartile means and bootstrap intervals."""

import math

import pytest

from amago.cli.statistics import bootstrap_interquartile_mean, interquartile_mean


@pytest.mark.parametrize(
    ("scores", "mean"),
    [  # values of scipy.stats.trim_mean(scores, 0.25), which rliable uses
        ([3.0], 3.0),
        ([0.0, 8.0, 1.0], 3.0),
        ([9.0, 1.0, 2.0, 4.0, -7.0], 7.0 / 3.0),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 0.0], 4.5),
        ([[1.0, 2.0, 30.0], [4.0, 5.0, -60.0]], 3.0),
    ],
)
def test_the_interquartile_mean_is_scipys_trimmed_mean(scores: list[float], mean: float) -> None:
    assert interquartile_mean(scores) == pytest.approx(mean)


def test_the_interquartile_mean_leaves_out_the_best_and_worst_quarter() -> None:
    assert interquartile_mean([100.0, 2.0, 3.0, -50.0]) == 2.5
    with pytest.raises(ValueError, match="scores is empty"):
        interquartile_mean([])


def test_the_interval_of_two_runs_spans_both() -> None:
    # Resamples: (0, 0), (0, 1), (1, 0), (1, 1), each with a probability of 1/4.
    assert bootstrap_interquartile_mean([[0.0, 1.0]]) == (0.5, 0.0, 1.0)


def test_runs_are_drawn_within_their_task() -> None:
    # Tasks without spread have an interval without width, however different they are.
    assert bootstrap_interquartile_mean([[0.0, 0.0], [1.0, 1.0]]) == (0.5, 0.5, 0.5)


def test_one_run_has_no_interval() -> None:
    estimate = bootstrap_interquartile_mean([[3.0]])
    assert estimate.value == 3.0
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)
