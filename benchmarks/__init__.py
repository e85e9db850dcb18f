"""Benchmarks: each module is run by itself, prints what it measured and stores it under results/."""
