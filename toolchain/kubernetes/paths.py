"""Where the cluster's files stand."""

from pathlib import Path

from toolchain.cache import cache_root

HERE = Path(__file__).resolve().parent
MODULES = HERE / "modules"
NODE_FILES = HERE / "node"

CLUSTER_CACHE = cache_root() / "cluster"
"""What takes long to make, shared by all clones."""

LOCKS = CLUSTER_CACHE / "locks"
"""A folder for each thing that one process at a time makes or removes."""

CLUSTERS = CLUSTER_CACHE / "clusters"
"""A folder for each cluster there is: its record and its kubeconfig."""
