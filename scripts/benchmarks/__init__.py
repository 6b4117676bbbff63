"""What `scripts/bench.py` times; one file a benchmark."""
