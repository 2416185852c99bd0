"""Whether a server keeps what its service classes promise, measured from outside."""
