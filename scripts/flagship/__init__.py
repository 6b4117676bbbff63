"""The parts of `scripts/flagship_results.py`: how far the shipped models come, and where they fail."""
