-- A serial column takes its numbers from a sequence.
GRANT USAGE ON SEQUENCE {sequence} TO {writer};
