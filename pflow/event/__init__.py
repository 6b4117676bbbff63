"""Events in memory: hits, tracks, truth, links, and what is done to them."""
