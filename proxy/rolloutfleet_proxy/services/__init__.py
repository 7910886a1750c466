"""What the proxy does when asked: the only place that pairs a transaction of the store with what is in memory."""
