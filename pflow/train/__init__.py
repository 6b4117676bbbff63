"""Lightning module and callbacks."""
