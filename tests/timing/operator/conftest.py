"""The bare API server of tests/cluster."""

from tests.cluster.conftest import apiserver, namespace

__all__ = ["apiserver", "namespace"]
