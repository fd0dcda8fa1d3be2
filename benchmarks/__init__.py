"""What is measured, against whom: ``python -m benchmarks [name …]``; each peer runs interleaved with ours."""
