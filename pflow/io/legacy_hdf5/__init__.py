"""The first paper's HDF5 files."""
