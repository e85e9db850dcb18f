"""The package's native modules: one for each operation that has C++ code."""

from __future__ import annotations

from amago.kernels.compile import PACKAGE, Extension

TWO_HOT = Extension("amago_two_hot", (PACKAGE / "two_hot" / "csrc" / "two_hot.cpp",))

EXTENSIONS = (TWO_HOT,)
