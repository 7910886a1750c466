"""Agents run on tasks, their sessions exported as episodes: what `Fleet.rollout` is made of (docs/trainer.md)."""
