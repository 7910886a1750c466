"""How a proxy's life ends and begins again: drains, and the log of its boots."""
