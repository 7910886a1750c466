"""The children of a fleet as manifests: pure functions of the fleet and of what this operator was told."""
