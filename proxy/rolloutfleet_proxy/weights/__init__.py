"""Weight versions, runs and pauses of this proxy."""
