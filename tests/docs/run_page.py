"""Runs the code blocks of a documentation page, from top to bottom, in one folder.

    python tests/docs/run_page.py docs/using-policies.md [FOLDER]

The rules for pages are in docs/testing.md. Commands of amago-run and the Python blocks run in forks of one process
that has imported amago already, so a command takes a fraction of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<code>.*?)^(?P=indent)``` *$", flags=re.DOTALL | re.MULTILINE
)
DIRECTIVES = re.compile(r"(?:^ *<!-- test: (?:(?!-->).)*-->\s*)+\Z", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"<!-- test: (.*?) -->", re.DOTALL)
# A page that goes on with the files of another one, which runs before it in the same folder.
AFTER = re.compile(r"^<!-- test: after (\S+) -->$", re.MULTILINE)
SHOWN_ONLY = {"text", "json", "toml", "yaml", "ini", "gin", "html", "mermaid"}
# Installation is tested by `make install-check`; launchers start the cluster that tests/runner starts.
NOT_RUN = (
    "pip",
    "make",
    "git",
    "cd",
    "source",
    "sudo",
    "torchrun",
    "accelerate",
    "python -m venv",
    "python3 -m venv",
)
SHELL_SYNTAX = {"|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1"}


class PageError(Exception):
    """A block that does not follow the rules for pages, or that failed."""


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    code: str
    line: int  # of the block's first line of code, from 1
    replacements: tuple[tuple[str, str], ...] = ()
    before: tuple[str, ...] = ()
    append: str = ""
    needs: str | None = None
    compile_only: bool = False
    exit_code: int = 0
    raises: str | None = None

    @property
    def tested_code(self) -> str:
        code = self.code
        for old, new in self.replacements:
            if old not in code:
                raise PageError(f"line {self.line}: there is no {old!r} in the block")
            code = code.replace(old, new)
        return code

    @property
    def runs(self) -> bool:
        available = self.needs is None or importlib.util.find_spec(self.needs) is not None
        return self.title is None and not self.compile_only and available


def blocks_of(text: str) -> Iterator[Block]:
    """The fenced blocks of a page with the directives in the comments directly above them."""
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 2
        language, _, attributes = fence["info"].strip().partition(" ")
        if not language:
            raise PageError(f"line {line - 1}: a block needs a language; ```text for output")
        title = re.search(r'title="([^"]+)"', attributes)
        above = DIRECTIVES.search(text[: fence.start()])
        directives = [" ".join(each.split()) for each in DIRECTIVE.findall(above[0])] if above else []
        yield parsed(Block(language, title and title[1], textwrap.dedent(fence["code"]), line), directives)


def parsed(block: Block, directives: list[str]) -> Block:
    options: dict[str, object] = {}
    for directive in directives:
        word, _, rest = directive.partition(" ")
        if word == "after":
            continue
        if word == "append":
            options["append"] = rest
        elif word == "run":
            options["before"] = (*options.get("before", ()), rest)  # type: ignore[misc]
        elif word == "needs":
            options["needs"] = rest
        elif word.rstrip(":") == "compile":
            options["compile_only"] = True
        elif word == "exit":
            options["exit_code"] = int(rest)
        elif word == "raises":
            options["raises"] = rest
        elif " -> " in directive:
            pairs = (each.partition(" -> ") for each in directive.split(";"))
            options["replacements"] = tuple((old.strip(), new.strip()) for old, _, new in pairs)
        else:
            raise PageError(f"line {block.line}: {directive!r} is no directive")
    return Block(**{**vars(block), **options})  # type: ignore[arg-type]


def commands_of(block: Block) -> Iterator[str]:
    """The commands of a bash block, with continued lines joined and comments removed."""
    for line in block.tested_code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            command = line.strip() if SHELL_SYNTAX & set(words) or "$" in line else shlex.join(words)
            command = command.removeprefix(".venv/bin/")
            yield f"{command} {block.append}".strip() if words[0].endswith("amago-run") else command


class Page:
    """Runs blocks in the current folder."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.path = path
        self.blocks = list(blocks_of(text))
        self.earlier = [path.parent / name for name in AFTER.findall(text)]
        self._context = multiprocessing.get_context("fork")
        self._python: Connection | None = None

    def run(self) -> int:
        """Runs every block and returns how many ran."""
        try:
            return self._run_blocks()
        finally:
            if self._python is not None:
                self._python.send(None)

    def _run_blocks(self) -> int:
        count = 0
        for path in self.earlier:
            try:
                count += Page(path).run()
            except PageError as error:
                raise PageError(f"after {path.name}, {error}") from None
        if any(block.runs and block.language in ("python", "bash") for block in self.blocks):
            import torch._dynamo  # noqa: F401 - every optimizer imports it

            import amago.cli.train
            import amago.experiment.experiment  # noqa: F401
        for block in self.blocks:
            for command in block.before if block.runs or block.title else ():
                self._run_command(command, block.line)
            if block.title:
                file = Path(block.title)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.tested_code, encoding="utf-8")
            elif block.language == "python":
                self._run_python(block)
            elif block.language == "bash":
                self._run_bash(block)
            elif block.language not in SHOWN_ONLY:
                raise PageError(f"line {block.line - 1}: unknown language {block.language!r}")
            count += block.runs and block.language in ("python", "bash")
        return count

    def _run_bash(self, block: Block) -> None:
        if not block.runs:
            return
        for command in commands_of(block):
            if not command.startswith(tuple(f"{name} " for name in NOT_RUN)):
                self._run_command(command, block.line, block.exit_code)

    def _run_command(self, command: str, line: int, expected: int = 0) -> None:
        print(f"$ {command}", flush=True)
        if command.startswith("export "):
            for variable in shlex.split(command)[1:]:
                name, _, value = variable.partition("=")
                os.environ[name] = os.path.expandvars(value)
            return
        if command.startswith("amago-run") and not SHELL_SYNTAX & set(command.split()):
            process = self._context.Process(target=amago_run, args=(shlex.split(command)[1:],))
            process.start()
            process.join()
            code = process.exitcode
        else:
            code = subprocess.run(["bash", "-c", command], check=False).returncode
        if code != expected:
            raise PageError(f"line {line}: {command!r} ended with status {code}")

    def _run_python(self, block: Block) -> None:
        # Blank lines above, so that tracebacks name lines of the page.
        code = "\n" * (block.line - 1) + block.tested_code
        if not block.runs:
            compile(code, str(self.path), "exec")
            return
        if self._python is None:
            self._python, other = self._context.Pipe()
            self._context.Process(target=run_python_blocks, args=(other, str(self.path))).start()
            other.close()
        self._python.send(code)
        try:
            raised, details = self._python.recv()
        except EOFError:
            self._python = None
            raise PageError(f"line {block.line}: the Python process ended") from None
        if raised != block.raises:
            expected = f" instead of {block.raises}" if block.raises else ""
            raise PageError(f"line {block.line}: {raised or 'nothing'} was raised{expected}\n{details}")


def amago_run(arguments: list[str]) -> None:
    import amago.cli

    sys.argv = ["amago-run", *arguments]
    amago.cli.main()


def run_python_blocks(blocks: Connection, path: str) -> None:
    """Executes blocks in a module `__main__`, and answers with the name and traceback of what was raised."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.path.insert(0, "")
    while (code := blocks.recv()) is not None:
        raised, details = None, ""
        importlib.invalidate_caches()  # for modules that a block has just written
        try:
            exec(compile(code, path, "exec"), vars(main))
        except BaseException as error:  # also SystemExit: a page ends with its last block
            raised, details = type(error).__name__, traceback.format_exc()
        sys.stdout.flush()
        blocks.send((raised, details))


def main() -> None:
    page = Path(sys.argv[1]).resolve()
    sys.path.pop(0)  # the folder of this file
    if len(sys.argv) > 2:
        os.chdir(sys.argv[2])
    else:
        os.chdir(tempfile.mkdtemp(prefix="page-"))
        print(f"running {page.name} in {os.getcwd()}", flush=True)
    try:
        count = Page(page).run()
    except PageError as error:
        sys.exit(f"{page.name}, {error}")
    print(f"{page.name}: {count} blocks ran")


if __name__ == "__main__":
    main()
