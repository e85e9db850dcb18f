"""Pytest hooks for all tests.

GPU tests need a GPU, compiled code stays in the build folder, and a run fails when a test skips for a reason
that is not in ALLOWED_SKIPS.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# A skipped test checks nothing, so every reason needs a justification here.
ALLOWED_SKIPS = {
    "needs a CUDA device": "Triton's interpreter and a CPU build of the CUDA sources run the same kernels",
    "needs two CUDA devices": "as above, on the device of the tensors",
    "of free GPU memory": "tensors beyond 4 GB",
    "nvcc is not on the PATH": "the same CUDA sources are compiled for the CPU",
    "triton came without cuobjdump": "its wheels for Linux have it",
    "gymnasium 0.29 has one mode": "autoreset modes exist from gymnasium 1.1 on",
}
SLOW_TEST_SECONDS = 1200  # a training test takes up to ten minutes on two cores

for _variable, _folder in {"AMAGO_KERNELS_CACHE": "amago-kernels", "TRITON_CACHE_DIR": "triton"}.items():
    os.environ.setdefault(_variable, str(Path(__file__).parent / "build" / "home" / _folder))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells ignore SIGINT in background jobs; some tests send it to themselves and to their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items:
        import torch  # not at the top: the tests of amago-envs run without torch

        if not torch.cuda.is_available():
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_SECONDS))


def _unexpected_skips(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):  # xdist workers: the controller has all reports
        return []
    skips = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            skips.append(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")
    return skips


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    unexpected = _unexpected_skips(config)
    if unexpected:
        terminalreporter.section("skips that are not allowed", red=True)
        for line in unexpected:
            terminalreporter.line(line)
        terminalreporter.line("Make these tests run, or add the reason to ALLOWED_SKIPS in conftest.py.")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _unexpected_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
