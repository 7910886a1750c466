"""Agents whose tools return screenshots: with a text for each image their runs go on, and every turn extends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fleets import Fleet
from tests.integration.proxy.in_process import proxy_in_process
from tests.unit.proxy.dialects.test_images import SHOT, chat_image, messages_image, responses_image

from rolloutfleet_proxy.dialects.images import PLACEHOLDER

Json = Any
USER = {"role": "user", "content": "Take a screenshot."}
SHOOT = {"name": "shoot", "description": "Shoots.", "parameters": {"type": "object", "properties": {}}}
IMAGES = "rolloutfleet_image_placeholders_total"


class Agent:
    """One session, in whatever dialect."""

    def __init__(self, admin: httpx.AsyncClient, started: Json) -> None:
        self.admin, self.session = admin, started["session_id"]
        self._headers = {"authorization": f"Bearer {started['api_key']}"}

    async def ask(self, path: str, **body: Json) -> Json:
        reply = await self.admin.post(path, json=body, headers=self._headers)
        return reply.raise_for_status().json()

    async def turns(self) -> list[Json]:
        reply = await self.admin.get(f"/sessions/{self.session}/turns")
        turns: list[Json] = reply.raise_for_status().json()["turns"]
        return turns

    async def extends_with(self, placeholders: list[int]) -> None:
        turns = await self.turns()
        assert [turn["placeholders"] for turn in turns] == placeholders
        assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])]
        assert {turn["branch_reason"] for turn in turns} == {None}


@pytest.fixture
async def agent(fleet: Fleet, tmp_path: Path) -> AsyncIterator[Agent]:
    async with proxy_in_process(fleet, tmp_path, compatibility={"images": "placeholder"}) as (_, admin):
        yield Agent(admin, (await admin.post("/sessions", json={})).raise_for_status().json())


async def test_a_run_with_screenshots_extends_in_chat_and_exports_say_where(agent: Agent) -> None:
    messages: list[Json] = [USER]
    image = chat_image()
    shot = [{"type": "text", "text": SHOT}, image]
    for number in range(3):
        asked = {"messages": messages, "tools": [{"type": "function", "function": SHOOT}], "max_tokens": 200}
        said = (await agent.ask("/v1/chat/completions", **asked))["choices"][0]["message"]
        calls = said.get("tool_calls") or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": shot} for call in calls]
        messages += [said, *(results or [{"role": "user", "content": shot}])]
        image["image_url"] = {"url": f"data:image/png;base64,{number}"}  # What an image shows makes no branch.
    counts = [turn["placeholders"] for turn in await agent.turns()]
    assert counts[0] == 0 and counts == sorted(counts) and counts[-1] >= 2
    await agent.extends_with(counts)

    (await agent.admin.post(f"/sessions/{agent.session}/close")).raise_for_status()
    export = (await agent.admin.post("/export", json={"session_ids": [agent.session]})).raise_for_status().json()
    assert [turn["placeholders"] for turn in export["trajectories"][0]["turns"]] == counts
    told = (await agent.admin.get(f"/sessions/{agent.session}/conversation")).raise_for_status().json()
    assert [turn["placeholders"] for turn in told["turns"]] == counts
    shown = (await agent.admin.get("/metrics")).text.splitlines()
    [line] = [line for line in shown if line.startswith(IMAGES)]
    assert float(line.split()[1]) == sum(counts)


async def test_a_run_with_screenshots_extends_in_the_anthropic_api(agent: Agent) -> None:
    image = messages_image(cache_control={"type": "ephemeral"})
    first = await agent.ask("/v1/messages", max_tokens=50, messages=[{"role": "user", "content": [image]}])
    said = [
        {"role": "user", "content": [messages_image()]},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "text", "text": SHOT}, image]},
    ]
    await agent.ask("/v1/messages", max_tokens=50, messages=said)
    await agent.extends_with([1, 2])


async def test_a_run_with_screenshots_extends_in_the_responses_api_by_items_and_by_name(agent: Agent) -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": SHOT}, responses_image()]}
    first = await agent.ask("/v1/responses", max_output_tokens=50, input=[item])
    second = await agent.ask("/v1/responses", max_output_tokens=50, input=[item, *first["output"], item])
    asked = {"max_output_tokens": 50, "input": [item], "previous_response_id": second["id"]}
    await agent.ask("/v1/responses", **asked)
    await agent.extends_with([1, 2, 3])


async def test_the_same_text_typed_by_hand_makes_the_same_prompt(agent: Agent, fleet: Fleet) -> None:
    parts = [{"type": "text", "text": SHOT}, chat_image()]
    for content in (parts, SHOT + PLACEHOLDER):
        messages = [{"role": "user", "content": content}]
        await agent.ask("/v1/chat/completions", messages=messages, max_tokens=5)
    turns = await agent.turns()
    prompts = [
        entry["input_ids"] for turn in turns for entry in fleet.engine.log() if entry["rid"].startswith(turn["turn_id"])
    ]
    assert prompts[0] == prompts[1] and [turn["placeholders"] for turn in turns] == [1, 0]
