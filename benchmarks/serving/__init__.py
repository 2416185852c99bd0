"""A load generator for any server with the OpenAI API, and what is measured with it."""
