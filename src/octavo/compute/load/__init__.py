"""Model files as sources of weights."""
