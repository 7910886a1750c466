"""What tests, rigs and the test cluster are made with: the Go compiler, and the cache of what takes long to make."""
