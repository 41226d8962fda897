"""What the source reads of the server besides rows: relations, columns, rights, snapshots."""
