"""Runs in the cluster: FLEET REPLICAS. Takes all trajectories from every proxy and acknowledges them.

Prints, as its last line, {"exported": {session: [turn, …]}, "audit": the fleet's sums}.
"""

import json
import sys
from pathlib import Path

import httpx

fleet, replicas = sys.argv[1], int(sys.argv[2])
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
exported: dict[str, list[str]] = {}

for ordinal in range(replicas):
    proxy = httpx.Client(base_url=f"http://{fleet}-proxy-{ordinal}.{fleet}-proxies:8080", headers=admin, timeout=60)
    while batch := proxy.post("/export", json={"max_trajectories": 64}).raise_for_status().json():
        if not batch["trajectories"]:
            break
        for trajectory in batch["trajectories"]:
            exported.setdefault(trajectory["session_id"], []).extend(turn["turn_id"] for turn in trajectory["turns"])
        proxy.post(f"/leases/{batch['lease_id']}/ack").raise_for_status()

audit = httpx.get(f"http://{fleet}/audit?scope=fleet", headers=admin, timeout=60).raise_for_status().json()
print(json.dumps({"exported": exported, "audit": audit}))
