"""What is counted and timed, and how /metrics says it."""
