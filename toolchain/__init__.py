"""What tests, rigs and the cluster are made with: the Go compiler, environments apart, and the cache of all that."""
