"""Writing a fleet's status: at most once a pass, only where it differs, and only over what was read."""

from collections.abc import Mapping
from typing import Any

from rolloutfleet.spec import API_VERSION, KIND
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object


async def write(api: Api, body: Mapping[str, Any], status: FleetStatus) -> Object | None:
    """The fleet with that status; None where it has changed since it was read, and nothing was written."""
    meta = body["metadata"]
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        },
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    try:
        return await api.apply(manifest, subresource="status")
    except ApiRefused as refused:
        if refused.status in (404, 409):
            return None
        raise
