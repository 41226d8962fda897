"""One ordered sequence of keys holds a topic."""
