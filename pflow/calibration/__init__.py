"""Decoding options and uncertainties of a trained model, fitted on validation files."""
