"""The read side: views, searches by index, ordered iteration, snapshots."""
