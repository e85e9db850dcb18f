"""Native code is built once, completely or not at all; where it cannot be built, the reason is reported.

The module that is built here is a few lines of C++, so that a build takes a moment.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from amago.kernels import build
from amago.kernels.native import BuildError, Extension

SOURCE = """
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(ANSWER); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr, -1, methods};
extern "C" __attribute__((visibility("default"))) PyObject* PyInit_tiny() { return PyModule_Create(&module); }
"""
OTHER_PROCESS = """
import logging, sys
from pathlib import Path
logging.basicConfig(format="%(message)s")
from amago.kernels.native import Extension
print(Extension("tiny", (Path(sys.argv[1]),)).load().answer())
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("AMAGO_KERNELS_CACHE", str(folder))
    monkeypatch.delenv("AMAGO_KERNELS_BUILD", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "tiny.cpp"
    path.write_text(SOURCE.replace("ANSWER", "42"))
    return path


def tiny(source):
    """The extension as a process sees it that has loaded nothing yet."""
    return Extension("tiny", (source,))


def start(source, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


def binaries(cache):
    return sorted(cache.glob("*.so"))


def unfinished(cache):
    return sorted(cache.glob("*.tmp"))


def wrapper(tmp_path, before):
    """A compiler that does something of its own first; the last argument is where the result goes."""
    script = tmp_path / "compiler"
    script.write_text("#!/bin/sh\n" + textwrap.dedent(before) + '\nexec c++ "$@"\n')
    script.chmod(0o755)
    return script


def test_a_module_is_built_when_it_is_first_needed_and_loaded_ever_after(cache, source, caplog):
    assert tiny(source).load().answer() == 42
    (binary,) = binaries(cache)
    first = binary.stat().st_mtime_ns
    assert "building tiny" in caplog.text
    caplog.clear()
    assert tiny(source).load().answer() == 42
    assert binary.stat().st_mtime_ns == first
    assert caplog.text == ""
    assert unfinished(cache) == []


def test_concurrent_processes_build_it_once(cache, source):
    processes = [start(source) for _ in range(4)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [out for out, _ in outputs] == ["42\n"] * 4, outputs
    assert sum("building" in log for _, log in outputs) == 1
    assert len(binaries(cache)) == 1
    assert unfinished(cache) == []


def test_a_killed_build_leaves_nothing_that_is_ever_loaded(cache, source, tmp_path, monkeypatch):
    hang, hanging = tmp_path / "hang", tmp_path / "hanging"
    hang.touch()
    compiler = wrapper(
        tmp_path,
        f"""\
        for output; do :; done
        if [ -e {hang} ]; then echo half > "$output"; touch {hanging}; exec sleep 60; fi
        """,
    )
    monkeypatch.setenv("CXX", str(compiler))
    process = start(source)
    while not hanging.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(unfinished(cache)) == 1
    assert binaries(cache) == []

    hang.unlink()
    assert tiny(source).load().answer() == 42
    assert unfinished(cache) == []


@pytest.mark.parametrize("place", ["below a file", "read-only"])
def test_an_unwritable_cache_is_reported_with_the_remedy(cache, source, monkeypatch, place):
    folder = source / "cache" if place == "below a file" else Path("/proc/amago-kernels")
    monkeypatch.setenv("AMAGO_KERNELS_CACHE", str(folder))
    with pytest.raises(BuildError, match=f"{folder} cannot be written to: set AMAGO_KERNELS_CACHE"):
        tiny(source).load()


def test_a_missing_compiler_is_reported(cache, source, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    extension = tiny(source)
    (reason,) = extension.missing()
    assert "no C++ compiler: none of c++, g++, clang++ is on the PATH" in reason
    assert extension.missing(build=True) == [reason]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "CXX='no-such-compiler' does not exist" in tiny(source).missing()[0]


def test_without_a_compiler_what_was_built_before_is_used(cache, source, monkeypatch, tmp_path):
    build.build(tiny(source))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert tiny(source).missing() == []
    assert tiny(source).load().answer() == 42


def test_building_can_be_forbidden(cache, source, monkeypatch):
    monkeypatch.setenv("AMAGO_KERNELS_BUILD", "never")
    with pytest.raises(BuildError, match="AMAGO_KERNELS_BUILD=never"):
        tiny(source).load()
    assert not cache.exists()
    monkeypatch.setenv("AMAGO_KERNELS_BUILD", "sometimes")
    with pytest.raises(ValueError, match="must be 'auto' or 'never', got 'sometimes'"):
        tiny(source).load()


def test_a_failed_build_reports_the_compilers_message_and_is_not_repeated(
    cache, source, tmp_path, monkeypatch
):
    calls = tmp_path / "calls"
    monkeypatch.setenv("CXX", str(wrapper(tmp_path, f"echo call >> {calls}")))
    source.write_text("#error this cannot be\n")
    extension = tiny(source)
    for _ in range(2):
        with pytest.raises(BuildError, match="this cannot be"):
            extension.load()
    assert calls.read_text() == "call\n"
    assert binaries(cache) == []
    assert unfinished(cache) == []


def test_changed_sources_are_built_anew(cache, source):
    first = build.build(tiny(source))
    source.write_text(SOURCE.replace("ANSWER", "43"))
    assert build.build(tiny(source)) != first
    assert tiny(source).load().answer() == 43


def test_the_cache_is_where_the_environment_says(monkeypatch):
    monkeypatch.setenv("AMAGO_KERNELS_CACHE", "/some/where")
    assert build.cache_folder() == Path("/some/where")
    monkeypatch.delenv("AMAGO_KERNELS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/else")
    assert build.cache_folder() == Path("/else/amago-kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert build.cache_folder() == Path("/home/someone/.cache/amago-kernels")
