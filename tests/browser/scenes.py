"""What the tests' fleet holds: a conversation that branches, with a trainer's feedback; siblings; hostile texts."""

import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
import numpy as np
from safetensors.numpy import save
from tests.integration.client.fleet import agents

from rolloutfleet.fleet import Fleet

Json = dict[str, Any]

HOSTILE: Final = (
    "<script>owned()</script><img src=x onerror=owned()><svg onload=owned()></svg><b>bold</b> "
    "\x1b]0;owned\x07\x1b[2J \u202edesrever\u202c &lt;i&gt; javascript:owned() {{ 7 * 7 }} ${owned()} </pre></script>"
)
HUGE: Final = "w" * 30_000
TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@dataclass
class Scenes:
    branched: str = ""
    turns: list[str] = field(default_factory=list)
    """Of the branched session: two of one conversation, and one that parts from the second."""
    group: str = ""
    siblings: list[str] = field(default_factory=list)
    hostile: str = ""
    live: Any = None
    """A session that goes on."""


def play(fleet: Fleet) -> Scenes:
    scenes = Scenes()
    session = fleet.start_session("branching")
    scenes.branched = session.session_id
    (asked, made), one = say(session, [{"role": "user", "content": "Grüße 🙂, how is Oslo?"}], tools=TOOLS)
    two, three = (
        say(
            session,
            [{**asked, "content": question}, made, *(result_of(call, result) for call in made["tool_calls"])],
            tools=TOOLS,
        )[1]
        for question, result in ((asked["content"], "42 degrees"), ("And Bergen?", "7 degrees"))
    )
    scenes.turns = [one, two, three]
    annotate(fleet, session, two, note=f"so-so {HOSTILE}")
    fleet.reward(session, 0.5, turn_id=two)
    group = fleet.start_group(3, "siblings")
    scenes.group = group.group_id
    for place, sibling in enumerate(group.sessions):
        scenes.siblings.append(sibling.session_id)
        say(sibling, [{"role": "user", "content": f"Sum it up, {place}."}])
        fleet.reward(sibling, place / 2)
    bad = fleet.start_session(f"bad {HOSTILE}")
    scenes.hostile = bad.session_id
    say(bad, [{"role": "system", "content": HOSTILE}, {"role": "user", "content": f"{HUGE} {HOSTILE}"}])
    scenes.live = fleet.start_session("going on")
    say(scenes.live, [{"role": "user", "content": "Hello"}])
    return scenes


say = partial(agents.say, max_tokens=600)


def result_of(call: Json, result: str) -> Json:
    return {"role": "tool", "tool_call_id": call["id"], "content": result}


def annotate(fleet: Fleet, session: Any, turn: str, *, note: str) -> None:
    """As a trainer would: log-probabilities, and advantages of both signs; nothing of the first token."""
    (shown,) = [each for each in fleet.turns(session) if each.turn_id == turn]
    logprobs = np.asarray(shown.logprobs, np.float32) - 0.2
    logprobs[0] = np.nan
    advantages = np.linspace(-2, 2, len(logprobs), dtype=np.float32)
    httpx.post(
        f"{session.base_url.removesuffix('/v1')}/annotations",
        content=save(
            {f"{turn}/logprobs": logprobs, f"{turn}/advantages": advantages},
            metadata={"notes": json.dumps({turn: note})},
        ),
        headers={"authorization": f"Bearer {fleet.whereabouts.admin_key}"},
    ).raise_for_status()
