"""Hooks of mkdocs.yml: navigation of whole folders, links out of docs/, and the packages for mkdocstrings.

Pages link to each other, and to other files of the repository, by relative paths, so that they also read well on a
code host. A linked file outside of docs/ becomes the file repository/PATH of the site.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PREFIX = "repository"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE)


def on_startup(**_: Any) -> None:
    link_packages(ROOT / "build" / "docs" / "packages" / "amago")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    nav: list[Any] = config.nav or []
    listed = set(pages_in(nav))
    config.nav = expanded(nav, listed)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files outside of docs/ that the navigation names, or that pages link to."""
    wanted = [
        page.removeprefix(f"{PREFIX}/") for page in pages_in(config.nav or []) if page.startswith(PREFIX)
    ]
    for file in files.documentation_pages():
        wanted += links_out(f"docs/{file.src_uri}", file.content_string)
    seen = set()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        if not (ROOT / path).is_file():
            raise PluginError(f"{path} is linked to, but there is no such file")
        files.append(File.generated(config, f"{PREFIX}/{path}", abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            files.get_file_from_path(f"{PREFIX}/{path}").inclusion = not_in_nav()
            wanted += links_out(path, (ROOT / path).read_text(encoding="utf-8"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that leave docs/ to the files that `on_files` added."""
    source = page.file.src_uri
    path = f"docs/{source}"
    if source.startswith(f"{PREFIX}/"):
        path = source.removeprefix(f"{PREFIX}/")
        page.meta["search"] = {"boost": 0.2}  # changelogs mention everything

    def replaced(match: re.Match[str]) -> str:
        target = resolved(path, match[1])
        if target == path:
            return match[1]
        return os.path.relpath(in_site(target), PurePosixPath(source).parent)

    return outside_fences(markdown, lambda text: LINK.sub(replaced, text))


def not_in_nav() -> Any:
    from mkdocs.structure.files import InclusionLevel

    return InclusionLevel.NOT_IN_NAV


def outside_fences(markdown: str, change: Any) -> str:
    result, end = [], 0
    for fence in FENCE.finditer(markdown):
        result += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*result, change(markdown[end:])])


def links_out(path: str, markdown: str) -> list[str]:
    """Files of the repository outside of docs/ that the Markdown file at `path` links to."""
    targets = (resolved(path, link) for link in LINK.findall(FENCE.sub("", markdown)))
    return [target for target in targets if not target.startswith("docs/")]


def resolved(path: str, link: str) -> str:
    """The file that a relative link names, as a path from the repository's root."""
    return os.path.normpath(PurePosixPath(path).parent / link)


def in_site(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"{PREFIX}/{target}"


def pages_in(nav: Any) -> list[str]:
    """All paths of a navigation."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [page for child in children for page in pages_in(child)]


def expanded(nav: Any, listed: set[str]) -> Any:
    """The navigation with the pages of a folder in the place of FOLDER/*."""
    if isinstance(nav, dict):
        return {title: expanded(child, listed) for title, child in nav.items()}
    if isinstance(nav, str) and nav.endswith("/*"):
        return rest_of(nav, listed)
    if isinstance(nav, list):
        children: list[Any] = []
        for child in nav:
            if isinstance(child, str) and child.endswith("/*"):
                children += rest_of(child, listed)
            elif (page := expanded(child, listed)) and any(pages_in(page)):
                children.append(page)
        return children
    return nav


def rest_of(pattern: str, listed: set[str]) -> list[str]:
    """The pages of a folder: index.md, then those that it links to, in their order, then the others by name."""
    pages = [page.relative_to(DOCS).as_posix() for page in sorted(DOCS.glob(pattern)) if page.suffix == ".md"]
    index = pattern.replace("*", "index.md")
    order = [index]
    if index in pages:
        links = LINK.findall((DOCS / index).read_text(encoding="utf-8"))
        order += [in_site(resolved(f"docs/{index}", link)) for link in links]
    pages.sort(key=lambda page: order.index(page) if page in order else len(order))
    return [page for page in pages if page not in listed]


def link_packages(folder: Path) -> None:
    """Makes a folder `amago` with links to the parts of the five packages, to be read without importing them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for source in ROOT.glob("packages/*/src/amago/*"):
        if source.name != "__pycache__":
            (folder / source.name).symlink_to(source)
