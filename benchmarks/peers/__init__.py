"""Other proxies that are measured beside ours, in the same run."""
