"""Octavo beside other engines on one machine: the same load on each in turn, and the ratios."""
