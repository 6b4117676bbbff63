"""The measurements of `scripts/results.py`, one file for each kind of result."""
