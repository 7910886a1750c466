"""Writing a fleet's status: at most once a pass, only where it differs, and only over what was read.

It is replaced as a whole, and not by server-side apply: that refuses a status with any field which the definition in
the cluster does not have yet, so that an operator newer than the definition could say nothing, nor do anything. Written
like this, such a field is left out by the API server.
"""

from collections.abc import Mapping
from typing import Any

from rolloutfleet.spec import KIND
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object


async def write(api: Api, body: Mapping[str, Any], status: FleetStatus) -> Object | None:
    """The fleet with that status; None where it has changed since it was read, and nothing was written."""
    meta = body["metadata"]
    said = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    steps = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
        {"op": "add", "path": "/status", "value": said},
    ]
    try:
        return await api.patch(KIND, meta["namespace"], meta["name"], steps, form="json", subresource="status")
    except ApiRefused as refused:
        if refused.status in (404, 409):
            return None
        raise
