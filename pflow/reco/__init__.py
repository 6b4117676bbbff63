"""Reconstruction of events and files with a trained model."""
