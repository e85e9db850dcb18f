"""Builtin environments, one suite per file; import a suite's module to use it (third-party packages load then)."""
