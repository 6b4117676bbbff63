"""The networks. Knows torch and nothing else of pflow; sizes and ids come in as arguments."""
