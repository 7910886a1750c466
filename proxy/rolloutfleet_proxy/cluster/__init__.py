"""The other proxies: who they are, what is passed on, what is done together."""
