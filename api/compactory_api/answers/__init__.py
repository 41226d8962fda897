"""What routes answer with: values, pages, digests and streams of changes. No routes are here."""
