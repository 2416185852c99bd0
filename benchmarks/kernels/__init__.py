"""Each kernel as a share of what this machine allows."""
