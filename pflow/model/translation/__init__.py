"""The networks of the first paper."""
