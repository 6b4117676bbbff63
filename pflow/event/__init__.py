"""Events in memory: hits, tracks, truth and links, and operations on them."""
