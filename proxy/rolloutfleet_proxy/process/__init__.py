"""A proxy's processes: the parent that keeps the listening socket, drains, and the memory that they take.

The parent imports `supervisor`, `decisions`, `channel` and `parent_log` alone, so it stays small.
"""
