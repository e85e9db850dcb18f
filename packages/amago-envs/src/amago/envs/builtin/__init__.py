"""Builtin environments, one suite per module. Importing a suite's module imports its third-party packages."""
