"""Values of a topic as typed columns: which types hold them, and rows in these types, for exports and DataFrames."""
