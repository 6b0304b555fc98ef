"""Index sets: the places of wrong entries in the fewest words."""
