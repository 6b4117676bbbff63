"""Parts of `scripts/attack.py`."""
