"""Trained models as stored: format, loading and saving."""
