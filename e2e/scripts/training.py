"""Runs in the cluster: FLEET REPLICAS ENGINE KEY MODEL. Agents, and a trainer that gives the engine new weights.

ENGINE is an SGLang server's address and KEY what it asks for, MODEL the folder of the new weights as it sees it. Three
agents have two turns with the old weights; one more is in the middle of a long one when the weights change; then each
of the three has two more.

Prints, as its last line, {"turns": {session: its turns}, "trajectories": all that was exported, "audit": the sums}.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai

LONG = 2500
fleet, replicas, engine, key, model = sys.argv[1], int(sys.argv[2]), *sys.argv[3:6]
admin = {"Authorization": f"Bearer {Path('/etc/rolloutfleet/keys/admin-keys').read_text().split()[0]}"}
trainer = httpx.Client(base_url=f"http://{fleet}", headers=admin, timeout=120)
sglang = httpx.Client(base_url=engine, headers={"Authorization": f"Bearer {key}"}, timeout=120)
whole_fleet = {"scope": "fleet"}


def started(task: str) -> dict[str, Any]:
    session: dict[str, Any] = trainer.post("/sessions", json={"task_id": task}).raise_for_status().json()["sessions"][0]
    return session


class Agent:
    """One conversation of the stock client, streamed and not in turn."""

    def __init__(self, task: str) -> None:
        session = started(task)
        self.id = session["session_id"]
        self.messages: list[Any] = [{"role": "user", "content": f"What is {task}?"}]
        self._client = openai.OpenAI(base_url=session["base_url"], api_key=session["api_key"])
        self._streamed = False

    def turn(self, **options: Any) -> None:
        asked = {"model": "tiny", "messages": self.messages, "max_tokens": 40, **options}
        answer = self._stream(asked) if self._streamed else self._whole(asked)
        self._streamed = not self._streamed
        self.messages += [answer, {"role": "user", "content": "Go on."}]

    def _whole(self, asked: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = self._client.chat.completions.create(**asked).choices[0].message.model_dump()
        return {name: value for name, value in message.items() if value is not None}

    def _stream(self, asked: dict[str, Any]) -> dict[str, Any]:
        content = reasoning = ""
        for chunk in self._client.chat.completions.create(**asked, stream=True):
            content += chunk.choices[0].delta.content or ""
            reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        return {"role": "assistant", "content": content} | ({"reasoning_content": reasoning} if reasoning else {})


def tokens_held() -> int:
    held: int = sglang.get("/v1/loads?include=core").json()["loads"][0]["num_used_tokens"]
    return held


def update() -> None:
    """What docs/weights.md tells a trainer to do."""
    load = {"path": model, "version": 2}
    trainer.post("/load-from-disk", params=whole_fleet, json=load, timeout=600).raise_for_status()


def exported() -> list[Any]:
    """All trajectories of all proxies, acknowledged."""
    taken: list[Any] = []
    for ordinal in range(replicas):
        address = f"http://{fleet}-proxy-{ordinal}.{fleet}-proxies:8080"
        with httpx.Client(base_url=address, headers=admin, timeout=60) as proxy:
            batch = proxy.post("/export", json={"max_trajectories": 64}).raise_for_status().json()
            taken += batch["trajectories"]
            proxy.post(f"/leases/{batch['lease_id']}/ack").raise_for_status()
    return taken


trainer.put("/version", params=whole_fleet, json={"version": 1}).raise_for_status()
agents = [Agent(f"{number} and {number}") for number in range(3)]
for _ in range(2):
    for agent in agents:
        agent.turn()

talker = Agent("everything")
talk = threading.Thread(target=talker.turn, kwargs={"max_tokens": LONG, "extra_body": {"ignore_eos": True}})
talk.start()
while tokens_held() < 200:
    assert talk.is_alive()
    time.sleep(0.05)
update()
talk.join()

for _ in range(2):
    for agent in agents:
        agent.turn()
agents.append(talker)
turns = {}
for agent in agents:
    turns[agent.id] = trainer.get(f"/sessions/{agent.id}/turns").raise_for_status().json()["turns"]
    trainer.post(f"/sessions/{agent.id}/reward", json={"reward": 1.0}).raise_for_status()
trajectories = exported()
audit = trainer.get("/audit", params=whole_fleet).raise_for_status().json()
print(json.dumps({"turns": turns, "trajectories": trajectories, "audit": audit}))
