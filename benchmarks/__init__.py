"""Benchmarks: each module is a program that prints its measurements and stores them under results/."""
