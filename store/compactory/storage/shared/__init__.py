"""Entries that several processes of one machine share: one process writes them, in LMDB."""
