"""The fleet on Kubernetes: what is made there, and how it is brought about. `rolloutfleet_operator.policy` decides."""
