"""Reading and writing files: ROOT (EDM4hep and flat) and the first paper's HDF5. The only place that uses uproot."""
