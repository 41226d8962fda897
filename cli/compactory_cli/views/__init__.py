"""What commands print: tables, bars and previews."""
