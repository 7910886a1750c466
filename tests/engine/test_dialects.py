"""The real engine behind each dialect: its random ids come back as they were, with the model's log-probabilities."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.engines import Engine
from tests.engine.request_log import RequestLog
from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed
from tests.engine.test_capture import assert_kept
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy.dialect_calls import assembled, post
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, WRITTEN, answered
from tests.waiting import PATIENCE, SGLANG_START

JSON = Any
TURNS = 4
LIMITS = {CHAT.name: "max_tokens", MESSAGES.name: "max_tokens", RESPONSES.name: "max_output_tokens"}
EQUAL = 1e-4
OTHER = 1e-2
"""Log-probabilities of other tokens are further apart than this."""
JUDGE = """
import json, sys
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
shipped, made = sys.argv[1:]
torch.manual_seed(3)
model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(shipped, tie_word_embeddings=False)).float().eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(2.0)
model.save_pretrained(made)
print("made", flush=True)

same, moved = 0.0, 0.0
for row in json.loads(sys.stdin.read()):
    ids = torch.tensor([row["input_ids"]])
    with torch.no_grad():
        said = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    ours, theirs = said.gather(-1, ids[0, 1:, None])[:, 0], torch.tensor(row["logprobs"])
    sampled = torch.tensor(row["loss_mask"][1:]) == 1
    same = max(same, float((ours - theirs[1:])[sampled].abs().max()))
    moved = max(moved, float((ours - theirs[:-1])[sampled].abs().max()))
print(json.dumps({"same": same, "moved": moved}))
"""
"""transformers: it makes the weights, then scores rows. The usual weights spread log-probabilities over tens: there
sums of float32 are further apart."""


@pytest.fixture
def judge(real_engine: Engine, sglang: Installed, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """It and the engine have the same weights; the next test's engine has the usual ones again."""
    made, errors = tmp_path / "weights", tmp_path / "errors"
    command = [str(sglang.python), "-W", "ignore", "-c", JUDGE, str(sglang.model("first")), str(made)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": launch.environment(sglang)}
    with errors.open("w") as file, subprocess.Popen(command, stderr=file, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "made\n", errors.read_text()
            weights = {"model_path": str(made), "weight_version": "1"}
            reply = httpx.post(f"{real_engine.url}/update_weights_from_disk", json=weights, timeout=PATIENCE)
            assert reply.raise_for_status().json()["success"]
            yield process
        finally:
            process.kill()


def talk(session: AgentSession, places: Sequence[int], *, stream: bool) -> None:
    """An append-only agent with tools, whose turns are in the dialects of `WRITTEN` at these places, over and over."""
    conversation: list[JSON] = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Begin."}]
    for number, place in enumerate(islice(cycle(places), TURNS)):
        dialect, write = WRITTEN[place]
        body = write(conversation) | {LIMITS[dialect.name]: 40}
        reply = post(session, dialect, body, stream=stream)
        said = answered(dialect, assembled(dialect, reply.content) if stream else reply.json())
        calls = said.get("tool_calls", ())
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "None."} for call in calls]
        conversation += [said, *(results or [{"role": "user", "content": f"And {number}?"}])]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("places", [[0], [1], [2], [0, 1, 2]], ids=["chat", "messages", "responses", "all"])
def test_random_ids_come_back_as_they_were(
    real_proxy: ProxyProcess, real_engine: Engine, request_log: RequestLog, places: list[int], stream: bool
) -> None:
    session = real_proxy.start_session()
    talk(session, places, stream=stream)
    turns, made = session.turns(), request_log.answered(session.session_id)
    assert len(turns) == len(made) == TURNS
    for turn, answer in zip(turns, made, strict=True):
        assert_kept(turn, answer)
    for parent, child, turn, before in zip(made, made[1:], turns[1:], turns, strict=False):
        history = parent.prompt + parent.output
        assert child.prompt[: len(history)] == history
        assert (turn["parent_id"], turn["branch_reason"]) == (before["turn_id"], None)


def test_exported_log_probabilities_are_the_models(real_proxy: ProxyProcess, judge: "subprocess.Popen[str]") -> None:
    sessions = [real_proxy.start_session() for _ in range(4)]
    for session, places in zip(sessions, ([0], [1], [2], [0, 1, 2]), strict=True):
        talk(session, places, stream=session is sessions[-1])
        session.post("reward", {"reward": 1.0}).raise_for_status()
    with real_proxy.admin() as admin:
        asked = {"session_ids": [session.session_id for session in sessions]}
        exported = admin.post("/export", json=asked).raise_for_status().json()["trajectories"]
    rows = [row["tensors"] for trajectory in exported for row in trajectory["rows"]]
    assert len(exported) == len(rows) == 4
    assert sum(sum(row["loss_mask"]) for row in rows) > 300
    told, _ = judge.communicate(json.dumps(rows), timeout=SGLANG_START)
    furthest = json.loads(told)
    assert furthest["same"] <= EQUAL and furthest["moved"] > OTHER
