"""Exports as files: a folder of parts, each acknowledged once it is durable. `rolloutfleet export --to` runs it.

docs/export.md says what stands in the files, and why a run that was killed loses nothing and writes nothing twice.
"""
