"""Values every room speaks: ids, requests, settings, errors, clock, model files."""
