"""A trainer that takes whatever is rewarded: exports it, reads it to its end, and acknowledges it."""

import json
import urllib.error
import urllib.request

from benchmarks.rigs.background import Background
from benchmarks.rigs.stack import Proxy

AT_ONCE = 4
"""Trajectories of one export."""
PAUSE = 0.2
"""Seconds between two looks when there was nothing."""


class Trainer(Background):
    """Runs until it is left, and then takes what is still there."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self.trajectories = 0
        self.bytes = 0
        self._proxy = proxy
        self._key = proxy.admin_key_file.read_text().strip()

    def run(self) -> None:
        while not self._left.is_set():
            if not self.take():
                self._left.wait(PAUSE)
        while self.take():
            pass

    def take(self) -> int:
        """Export once and acknowledge; how many trajectories there were."""
        lease, body = self._post("/export", {"max_trajectories": AT_ONCE}, accept="application/octet-stream")
        self.bytes += len(body)
        if lease is None:
            return 0
        length = int.from_bytes(body[:8], "little")
        exported = json.loads(json.loads(body[8 : 8 + length])["__metadata__"]["export"])
        count = len(exported["trajectories"])
        if count:
            self._post(f"/leases/{lease}/ack", {})
        self.trajectories += count
        return count

    def _post(self, path: str, content: object, *, accept: str = "application/json") -> tuple[str | None, bytes]:
        request = urllib.request.Request(
            self._proxy.url + path,
            data=json.dumps(content).encode(),
            method="POST",
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json", "Accept": accept},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.headers.get("Lease-Id"), answer.read()
