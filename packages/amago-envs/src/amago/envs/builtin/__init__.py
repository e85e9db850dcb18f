"""Environments that come with the package, one suite per file.

Nothing is imported here: a suite is loaded, with whatever third-party package it needs, only when it is used.
"""
