"""The children of a fleet as manifests: pure functions of the fleet and of the operator's settings."""
