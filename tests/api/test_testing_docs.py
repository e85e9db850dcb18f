"""The test files named in docs/testing.md exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_file_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "docs" / "testing.md").read_text())
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).is_file()] == []
