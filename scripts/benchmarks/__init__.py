"""The benchmarks of `scripts/bench.py`, one file each."""
