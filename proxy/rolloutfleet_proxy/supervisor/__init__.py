"""The small process that keeps the listening socket and starts the workers. It imports little, and nothing of ours."""
