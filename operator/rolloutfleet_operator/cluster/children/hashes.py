"""Hashes of manifests: equal content, equal hash, whatever the order of its keys."""

import hashlib
import json
from typing import Any

LENGTH = 16


def content_hash(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]
