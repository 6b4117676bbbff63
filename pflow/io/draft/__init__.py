"""Drafts of detector descriptions from what a podio file holds (`pflow detector`)."""
