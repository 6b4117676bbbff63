"""EDM4hep files as podio writes them, TTree and RNTuple."""
