"""Changed settings and keys, brought to running pods at once.

The kubelet looks at mounted ConfigMaps and Secrets about once a minute; a change of a pod's annotations makes it look
now. So a pod whose proxy has not taken what is written gets one.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import GENERATION
from rolloutfleet_operator.policy.actions import PatchMetadata
from rolloutfleet_operator.policy.observed import GROUP, ObservedPod

NOTE: Final = f"{GROUP}/refreshed"
"""On pods: the hash of what they were last told to look at."""


def refreshes(
    pods: Sequence[ObservedPod], config_map: Object | None, secret: Object | None, *, rotating: bool
) -> Iterator[PatchMetadata]:
    """A mark for each pod that should look. Both are as they were read: what was only just written is for next time."""
    if config_map is None:
        return
    newest = int((config_map["metadata"].get("annotations") or {}).get(GENERATION, 0))
    for pod in pods:
        keys = rotating or pod.key_refused
        version = secret["metadata"]["resourceVersion"] if keys and secret is not None else ""
        mark = content_hash([config_map.get("data"), version])
        answered = pod.stats is not None or pod.key_refused
        behind = keys or (pod.stats is not None and pod.stats.settings_generation < newest)
        if answered and behind and pod.terminating_since is None and pod.notes.get(NOTE) != mark:
            yield PatchMetadata(pod=pod.name, uid=pod.uid, annotations={NOTE: mark})
