"""`amago-run report`: one page that needs nothing else, about runs in any state."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.runner.run_folders import make_run
from typer.testing import CliRunner

from amago.cli.app import app
from amago.cli.run_figures import read_figures
from amago.cli.svg import Line, line_chart
from amago.cli.text import duration, number, size


class Page(HTMLParser):
    """Texts and attributes of a page; checks that every element is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def report(tmp_path: Path, *runs: str) -> Page:
    out = tmp_path / "pages" / "report.html"
    arguments = ["report", *runs, "--run-dir", str(tmp_path), "--out", str(out)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return Page(out.read_text())


def test_the_page_requests_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, "lake", activities=True)
    page = report(tmp_path, "lake")
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name in ("src", "href", "srcset")]
    style = page.texts[next(i for i, text in enumerate(page.texts) if ":root" in text)]
    assert not re.search(r"url\(|@import", style)


def test_runs_are_compared_and_seeds_averaged(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        make_run(tmp_path, f"rnn-{seed}", seed=seed, traj_encoder="rnn", evaluations=(0.5, 1.0, 2.0 + seed))
    make_run(tmp_path, "ff", traj_encoder="ff", finished=False)
    page = report(tmp_path, "rnn-0", "rnn-1", "rnn-2", "ff")
    assert "2 configurations, 4 runs" in page.texts
    assert "3 finished, 1 ended early · " in " ".join(page.texts)
    # The interquartile mean of 3, 4 and 5, and the interval of its bootstrap samples.
    assert "4.000" in page.texts
    assert "3.000 to 5.000" in page.texts
    setting = page.texts.index("traj_encoder")
    assert [text for text in page.texts[setting + 1 :] if text][:2] == ["rnn", "ff"]
    for title in (
        "Return",
        "Success by attempt",
        "Success during training",
        "Updates per second",
        "Checkpoints",
    ):
        assert title in page.texts


def test_every_environment_has_charts_of_its_own(tmp_path: Path) -> None:
    make_run(tmp_path, "lake")
    make_run(tmp_path, "pole", env="CartPole-v1", attempts=False)
    page = report(tmp_path, "lake", "pole")
    assert "MetaFrozenLake (size=3)" in page.texts
    assert "CartPole-v1 (size=3)" in page.texts
    assert page.texts.count("Return") == 4  # two charts, and a column in each of two tables
    assert page.texts.count("Success by attempt") == 1


def test_the_time_by_activity_is_shown_if_it_was_recorded(tmp_path: Path) -> None:
    make_run(tmp_path, "without")
    assert "Where the time goes" not in report(tmp_path, "without").texts
    make_run(tmp_path, "with", activities=True)
    page = report(tmp_path, "with")
    assert "Where the time goes" in page.texts
    assert {"21.0", "70.0 %", "10.0 %", "20.0 %"} <= set(page.texts)


def test_a_run_that_has_measured_nothing_yet_has_a_page(tmp_path: Path) -> None:
    (make_run(tmp_path, "new", finished=False) / "metrics.jsonl").unlink()
    assert "Nothing has been measured yet." in report(tmp_path, "new").texts


def test_names_are_escaped(tmp_path: Path) -> None:
    make_run(tmp_path, "a<b>&c", env="<script>alert(1)</script>")
    page = report(tmp_path, "a<b>&c")
    assert "script" not in page.tags
    assert "a<b>&c" in page.texts


def test_charts_fit_a_phone_and_follow_the_colour_scheme(tmp_path: Path) -> None:
    make_run(tmp_path, "lake")
    page = report(tmp_path, "lake")
    widths = {int(value or 0) for name, value in page.attributes if name == "width"}
    assert min(widths) <= 330
    assert any("prefers-color-scheme: dark" in text for text in page.texts)
    assert not [value for name, value in page.attributes if name in ("stroke", "fill")]


def test_the_points_of_a_chart_are_where_their_values_are() -> None:
    line = Line(label="a", index=0, x=[0, 50, 100], y=[0.0, 1.0, 0.5])
    drawn = line_chart([line], width=246, height=152, x_label="x", y_label="y", y_range=(0.0, 1.0))
    points = re.findall(r'<circle class="s0" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    # The plot is 184 pixels wide from 46 on, and 100 high from 12 on.
    assert [(float(x), float(y)) for x, y in points] == [(46.0, 112.0), (138.0, 12.0), (230.0, 62.0)]
    assert "a: 0.5 at 100" in drawn
    assert line_chart([], width=100, height=100, x_label="x", y_label="y") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (number(3.25), "3.250"),
        (number(-407.3), "-407.3"),
        (number(12345.6), "12,346"),
        (number(0.00001), "1.000e-05"),
        (number(0), "0.000"),
        (duration(59.6), "1 min 0 s"),
        (duration(12.2), "12 s"),
        (duration(3 * 3600 + 20 * 60), "3 h 20 min"),
        (duration(52 * 3600), "2 d 4 h"),
        (size(512), "512 B"),
        (size(3_400_000), "3.4 MB"),
    ],
)
def test_numbers_for_people(text: str, expected: str) -> None:
    assert text == expected


def test_speeds_are_those_of_wall_time(tmp_path: Path) -> None:
    run = read_figures(make_run(tmp_path, "lake"))
    assert run.speed("env_steps").returns == [160.0, 160.0]
    assert run.speed("gradient_steps").returns == [10.0, 10.0]
