"""`rolloutfleet inspect`: a local web page of a fleet, or of files that it left (docs/inspect.md)."""
