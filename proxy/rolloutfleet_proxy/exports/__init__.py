"""Trajectories on their way to the trainer."""
