"""Tiers below the KV cache: where the bytes of cached pages go when the cache needs the room."""
