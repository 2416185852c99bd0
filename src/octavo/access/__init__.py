"""Ways in from outside: HTTP."""
