"""The entries of a directory: applies records, and keeps indexes, bad records and changes up to date."""
