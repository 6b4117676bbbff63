"""Parts that all networks share."""
