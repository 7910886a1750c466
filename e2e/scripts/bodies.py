"""Runs in the cluster: FLEET CALLS MEGABYTES. Calls side by side, each with so large a body, until one gets no answer.

Before that a few turns are answered. Prints, as its last line, {"answered": {session: [turn, …]}, "ended": what became
of the call without an answer, or null after a minute}.
"""

import json
import sys
import threading
import time
from pathlib import Path

import httpx
import openai

fleet, calls, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
with httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=60) as trainer:
    started = trainer.post("/sessions", json={"task_id": "large"}).raise_for_status().json()["sessions"][0]
agent = openai.OpenAI(base_url=started["base_url"], api_key=started["api_key"])
answered = [
    agent.chat.completions.create(model="simulated", messages=[{"role": "user", "content": text}], max_tokens=20).id
    for text in ("One?", "Two?", "Three?")
]

message = {"role": "user", "content": "many words " * (megabytes * 2**20 // 11)}
body = json.dumps({"model": "simulated", "messages": [message], "max_tokens": 20}).encode()
headers = {"Authorization": f"Bearer {started['api_key']}", "Content-Type": "application/json"}
ended: list[str] = []
deadline = time.monotonic() + 60


def go_on() -> None:
    while not ended and time.monotonic() < deadline:
        try:
            httpx.post(f"{started['base_url']}/chat/completions", content=body, headers=headers, timeout=60)
        except httpx.TransportError as error:
            ended.append(repr(error))


threads = [threading.Thread(target=go_on) for _ in range(calls)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"answered": {started["session_id"]: answered}, "ended": ended[0] if ended else None}))
