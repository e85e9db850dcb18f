"""Fixtures of the learning tests: gin, threads and folders."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import gin
import pytest
import torch


@pytest.fixture(autouse=True)
def _clean_gin() -> Iterator[None]:
    """gin without bindings, before and after."""
    gin.clear_config()
    yield
    gin.clear_config()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks this small lose time to threads, and the order of sums should not depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def buffer_dir(tmp_path: Path) -> Iterator[Path]:
    """A folder for buffers and checkpoints that is gone when the test ends: a training writes many files."""
    yield tmp_path / "runs"
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
