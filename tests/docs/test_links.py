"""Links of the documentation: files and headings exist, and addresses of other servers are well formed.

`make docs` checks the links of the built site as well.
"""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("packages/*/*.md")),
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!`)\]\(<?([^)\s>]+)")
HEADING = re.compile(r"^#+ +(.+?)(?: *\{ *#([\w-]+) *\})? *$", re.MULTILINE)
MEMBER = re.compile(r"^::: (\S+)$", re.MULTILINE)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Anchors as MkDocs and code hosts make them from headings."""
    found: set[str] = set()
    for heading, explicit in HEADING.findall(prose(page)):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found |= {explicit} if explicit else {words.replace(" ", "-"), re.sub(r"[- ]+", "-", words)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for link in LINK.findall(prose(page)):
        parts = urlsplit(link)
        if parts.scheme:
            well_formed = parts.scheme == "mailto" or (parts.scheme == "https" and "." in parts.netloc)
            wrong += [] if well_formed else [link]
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        made = (
            MEMBER.search(target.read_text(encoding="utf-8"))
            if target.suffix == ".md" and target.is_file()
            else None
        )
        if not target.exists() or (
            parts.fragment and target.suffix == ".md" and not made and parts.fragment not in anchors(target)
        ):
            wrong.append(link)
    assert not wrong
