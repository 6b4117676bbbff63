"""From files to batches: streaming datasets, padding, the Lightning data module."""
