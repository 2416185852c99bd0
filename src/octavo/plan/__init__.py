"""Trace replay: the real scheduler and page pool on a model of time."""
