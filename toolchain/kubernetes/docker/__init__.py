"""The Docker daemon below the cluster: this machine's own, or one that we start and stop."""
