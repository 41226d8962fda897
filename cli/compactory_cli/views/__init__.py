"""The output of commands: tables, bars and previews."""
