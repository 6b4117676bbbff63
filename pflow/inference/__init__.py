"""A trained model on events and files."""
