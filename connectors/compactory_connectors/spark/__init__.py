"""Jobs on Spark: directories of any size loaded, exported and compared."""
