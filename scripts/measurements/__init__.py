"""What `scripts/results.py` measures and writes; one file a kind of result."""
