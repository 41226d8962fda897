"""The changes of a directory: the log of the newest ones, watches, subscriptions and their cursors."""
