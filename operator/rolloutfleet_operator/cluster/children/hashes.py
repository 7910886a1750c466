"""Hashes of manifests: equal content, equal hash, whatever the order of its keys."""

import copy
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

LENGTH = 16


def content_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def template_hash(template: Mapping[str, Any], *, container: str, derived: Collection[str]) -> str:
    """The hash by which a pod is outdated.

    Of `requests` and `limits`, memory is left out where it is `derived` from the budget: a raised budget restarts
    nobody. Replicas and versions are not part of a pod's template.
    """
    hashed = copy.deepcopy(dict(template))
    for each in hashed["spec"]["containers"]:
        if each["name"] == container:
            for amounts in derived:
                each.get("resources", {}).get(amounts, {}).pop("memory", None)
    return content_hash(hashed)
