"""Runs in the cluster: FLEET SESSION …. Rewards what those sessions have; prints, as its last line, how many it did."""

import json
import sys
from pathlib import Path

import httpx

fleet, *sessions = sys.argv[1:]
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
with httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60) as trainer:
    for session in sessions:
        trainer.post(f"/sessions/{session}/reward", json={"reward": 1.0}).raise_for_status()
print(json.dumps(len(sessions)))
