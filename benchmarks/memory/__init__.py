"""What paging, sharing, lazy reclaim and elastic memory bring, measured against their absence."""
