"""From measured rows to the arrays of a pack."""
