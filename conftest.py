"""What every run of the test suite obeys: GPU tests need a GPU, compiled code stays in the build folder, and
nothing is skipped that nobody allowed.

A skip is how a suite goes green while testing nothing, so each one has to be on the list
`tests/allowed_skips.txt` with a reason; a run with any other skip fails.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

ALLOWED_SKIPS = Path(__file__).parent / "tests" / "allowed_skips.txt"
for _variable, _folder in {"AMAGO_KERNELS_CACHE": "amago-kernels", "TRITON_CACHE_DIR": "triton"}.items():
    os.environ.setdefault(_variable, str(Path(__file__).parent / "build" / "home" / _folder))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As shells have it for what they start in the background; tests press Ctrl-C in themselves and their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
SLOW_TEST_SECONDS = 1200  # a training test may take its ten minutes on a machine half as fast


@dataclass(frozen=True, kw_only=True)
class AllowedSkip:
    """One line of the list: at most `count` tests whose id matches `nodeid` may skip, saying `reason`."""

    count: int
    nodeid: str
    reason: str

    def matches(self, nodeid: str, reason: str) -> bool:
        """True if the pattern (where `*` stands for anything) fits the id, and the reason contains ours."""
        pattern = ".*".join(re.escape(piece) for piece in self.nodeid.split("*"))
        return re.fullmatch(pattern, nodeid) is not None and self.reason in reason


def read_allowed_skips(text: str) -> list[AllowedSkip]:
    """Parses `count | test id pattern | reason given | why that is all right`; `#` opens a comment line."""
    allowed = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not fields[0].isdigit() or not all(fields):
            raise ValueError(
                f"allowed_skips.txt:{number}: want 'count | pattern | reason | why', got {line!r}"
            )
        allowed.append(AllowedSkip(count=int(fields[0]), nodeid=fields[1], reason=fields[2]))
    return allowed


def excess_skips(skips: Iterable[tuple[str, str]], allowed: Iterable[AllowedSkip]) -> list[str]:
    """The (test id, reason) pairs that no line of the list has room for, as lines of a report."""
    room = {entry: entry.count for entry in allowed}
    excess = []
    for nodeid, reason in skips:
        entry = next((e for e in room if room[e] > 0 and e.matches(nodeid, reason)), None)
        if entry is None:
            excess.append(f"{nodeid}: {reason}")
        else:
            room[entry] -= 1
    return excess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch  # only here: the environment tests run where torch is not installed

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))


def _reported_skips(config: pytest.Config) -> list[tuple[str, str]]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):  # a worker of xdist: its controller judges
        return []
    skips = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        skips.append((report.nodeid, reason.removeprefix("Skipped: ")))
    return skips


def _excess(config: pytest.Config) -> list[str]:
    skips = _reported_skips(config)
    if not skips:
        return []
    return excess_skips(skips, read_allowed_skips(ALLOWED_SKIPS.read_text()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    excess = _excess(config)
    if excess:
        terminalreporter.section("skipped without leave", red=True)
        for line in excess:
            terminalreporter.line(line)
        terminalreporter.line("Make them run, or add them with a reason to tests/allowed_skips.txt.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _excess(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
