"""Runs in the cluster: FLEET ORDINAL. A trainer with the library, which knows the fleet's name and no address.

Sessions until one is on the proxy of that ordinal, which comes later; then all of them exported, and a new version.
Prints, as its last line, {"answered": {session: its turns}, "exported": the same, "version", "audit"}.
"""

import json
import sys
import time
from typing import Any

import openai

from rolloutfleet import Fleet

TIMEOUT = 180
answered: dict[str, list[str]] = {}


def turn(client: openai.OpenAI, messages: list[Any]) -> str:
    answer = client.chat.completions.create(model="simulated", messages=messages, max_tokens=20)
    messages += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Go on."}]
    return answer.id


with Fleet.on_kubernetes(sys.argv[1], progress=False) as fleet:
    deadline = time.monotonic() + TIMEOUT
    while not any(name.startswith(f"s{sys.argv[2]}-") for name in answered):
        assert time.monotonic() < deadline, f"only {sorted(answered)}"
        with fleet.start_session("count") as session:
            client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key)
            messages: list[Any] = [{"role": "user", "content": "Count."}]
            answered[session.session_id] = [turn(client, messages) for _ in range(2)]
            session.reward(1.0)
        print("begun", flush=True)
    with fleet.export(len(answered), timeout=60) as export:
        exported = {each.session_id: [turn.turn_id for turn in each.turns] for each in export}
    with fleet.weight_update(version=7):
        pass  # simulated engines take any
    version, audit = fleet.weights().version, fleet.audit()
    sums = {"balanced": audit.balanced, "live": audit.turns.live, "leased": audit.turns.leased}

print(json.dumps({"answered": answered, "exported": exported, "version": version, "audit": sums}))
