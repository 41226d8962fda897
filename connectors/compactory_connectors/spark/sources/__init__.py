"""Files and tables of others as frames: each row with the file and, where somebody asks, the line it is from."""
