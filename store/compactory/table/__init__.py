"""A record and the present state become changed entries, index terms and bad records. Pure."""
