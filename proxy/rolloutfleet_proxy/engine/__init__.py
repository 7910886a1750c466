"""Engines and the gateway before them: what is asked, and whether the reply is evidence."""
