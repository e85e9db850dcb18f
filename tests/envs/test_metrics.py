"""What environments report, statistics over episodes, and the random streams."""

import numpy as np
import pytest

from amago.envs import AMAGO_ENV_LOG_PREFIX, EpisodeStats, ReturnHistory, SpecialMetricHistory
from amago.envs.metrics import extract_batched_metrics, extract_metrics
from amago.envs.seeding import ROLES, stream, stream_seed


def test_metrics_are_found_by_their_prefix_and_lose_it():
    info = {
        f"{AMAGO_ENV_LOG_PREFIX} Success ": True,
        f"{AMAGO_ENV_LOG_PREFIX}Depth": np.float32(2.5),
        "other": "x",
        3: 4,
    }
    assert extract_metrics(info) == {"Success": 1.0, "Depth": 2.5}
    assert extract_metrics({}) == {}


def test_a_metric_that_is_not_a_number_is_an_error_that_names_it():
    with pytest.raises(TypeError, match="Path"):
        extract_metrics({f"{AMAGO_ENV_LOG_PREFIX} Path": [1, 2]})


def test_metrics_of_a_batch_belong_to_the_rows_that_have_them():
    key = f"{AMAGO_ENV_LOG_PREFIX} Success"
    masked = {key: np.array([1.0, 0.0, 0.0]), f"_{key}": np.array([True, False, True])}
    assert extract_batched_metrics(masked, 3) == [(0, {"Success": 1.0}), (2, {"Success": 0.0})]
    assert extract_batched_metrics({key: np.array([np.nan, 2.0, np.nan])}, 3) == [(1, {"Success": 2.0})]
    assert extract_batched_metrics({key: 5}, 2) == [(0, {"Success": 5.0}), (1, {"Success": 5.0})]
    assert extract_batched_metrics({"other": 5}, 2) == []
    with pytest.raises(TypeError, match=r"shape \(2,\).*3"):
        extract_batched_metrics({key: np.zeros(2)}, 3)


def test_histories_keep_scores_by_name():
    returns = ReturnHistory("a")
    returns.add_score("b", 2)
    returns.add_score("b", 3.5)
    assert returns.data == {"a": [], "b": [2.0, 3.5]}
    specials = SpecialMetricHistory("a")
    specials.add_score("b", "Success", True)
    assert specials.data == {"a": {}, "b": {"Success": [1.0]}}


def test_statistics_have_the_names_under_which_they_are_logged():
    stats = EpisodeStats()
    for score in range(11):
        stats.add_episode("lake", float(score), length=10)
    stats.add_episode("door", 1.0, length=3)
    stats.add_metrics("lake", {"Episode 0 Success": 1.0})
    stats.add_metrics("lake", {"Episode 0 Success": 0.0})
    assert stats.to_metrics() == {
        "Average Total Return in lake": 5.0,
        "Bottom Quintile Total Return in lake": 2.0,
        "Average Episode Length in lake": 10.0,
        "Average Total Return in door": 1.0,
        "Bottom Quintile Total Return in door": 1.0,
        "Average Episode Length in door": 3.0,
        "Average Episode 0 Success in lake": 0.5,
        # The mean of the means, however many episodes each has.
        "Average Total Return (Across All Env Names)": 3.0,
    }


def test_without_a_finished_episode_there_is_no_entry_and_no_nan():
    def average(returns):
        with np.errstate(all="ignore"):
            return float(np.asarray(returns, dtype=np.float64).sum() / np.float64(len(returns)))

    assert EpisodeStats().to_metrics() == {}
    assert np.isnan(average([]))


def test_streams_repeat_with_the_seed_and_differ_in_everything_else():
    def draw(*arguments):
        return tuple(stream(*arguments).random(4))

    assert draw(1, "env", 0, 0) == draw(1, "env")
    others = [draw(1, role, rank, index) for role in ROLES for rank in (0, 1) for index in (0, 1)] + [
        draw(2, "env")
    ]
    assert len(set(others)) == len(others)
    assert draw(None, "env") != draw(None, "env")


def test_stream_seeds_are_integers_that_every_library_takes():
    seeds = {stream_seed(0, "env", rank, index) for rank in range(10) for index in range(100)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert stream_seed(0, "env") == stream_seed(0, "env")


@pytest.mark.parametrize("arguments", [(1, "envs"), (-1, "env"), (1, "env", -1), (1, "env", 0, -1)])
def test_streams_of_unknown_role_or_negative_number_are_refused(arguments):
    with pytest.raises(ValueError, match="random stream"):
        stream(*arguments)
