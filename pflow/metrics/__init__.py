"""Exact definitions of how good a reconstruction is."""
