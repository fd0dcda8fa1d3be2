"""Benchmarks against peers, run in interleaved rounds: ``python -m benchmarks [name …]``."""
