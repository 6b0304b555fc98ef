"""The equation: for one token, for a chunk, and the algebra that both need."""
