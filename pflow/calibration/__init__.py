"""Uncertainties and thresholds of a trained model, fitted on validation files."""
