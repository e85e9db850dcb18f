"""Every code block of the documentation runs. The rules for pages are in docs/testing.md."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.run_page import AFTER

ROOT = Path(__file__).parents[2]
RUN_PAGE = Path(__file__).with_name("run_page.py")
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Pages that another one continues run before it, in its folder.
CONTINUED = {page.parent / name for page in PAGES for name in AFTER.findall(page.read_text(encoding="utf-8"))}
TIMEOUT = 240


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in CONTINUED], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_blocks_of_the_page_run(page: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "MPLBACKEND": "Agg",
        "COLUMNS": "100",
    }
    finished = subprocess.run(
        [sys.executable, RUN_PAGE, page, tmp_path],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-5000:]
