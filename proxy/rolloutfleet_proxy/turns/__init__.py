"""A session's turns: how they are matched, kept and read."""
