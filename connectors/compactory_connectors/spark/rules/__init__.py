"""The demands of a load on its rows: as YAML, and beside the columns of sources and targets."""
