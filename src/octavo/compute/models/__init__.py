"""Model families as programs; `registry.load_program` picks one for a file."""
