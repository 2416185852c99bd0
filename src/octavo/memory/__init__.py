"""Bookkeeping of KV pages: pool, sharing by content, eviction, waste. No tensors."""
