"""What a load demands of its rows: as YAML, and beside the columns of sources and targets."""
