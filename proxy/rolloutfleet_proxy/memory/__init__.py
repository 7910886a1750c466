"""What is held in memory: bounded, measured, and given back to the system."""
