-- A serial column needs a right on its sequence.
GRANT USAGE ON SEQUENCE {sequence} TO {writer};
