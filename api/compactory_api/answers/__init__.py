"""The contents of answers: values, pages, digests and streams of changes. No routes are here."""
