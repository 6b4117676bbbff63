"""The pointing network: a decoder that says of each particle it writes which hits and tracks it is made of."""
