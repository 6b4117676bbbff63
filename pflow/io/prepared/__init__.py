"""Prepared events: read and validated once, then mapped into memory."""
