"""Tests on a real cluster, and the cluster itself."""
