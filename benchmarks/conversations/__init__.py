"""Conversations of real agents' programs, as they sent them."""
