"""SGLang's own sampling fields, sent by an agent: the real engine does as they say, and what it did is kept."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from tests.engine.engines import Engine
from tests.engine.request_log import Answered, RequestLog
from tests.engine.sglang.places import Installed
from tests.engine.test_capture import assert_kept
from tests.fleets import AgentSession, ProxyProcess
from tests.waiting import SGLANG_START
from tokenizers import Tokenizer

from rolloutfleet_proxy.capture.engine_bounds import MAX_GRAMMAR_BYTES, MAX_WRITTEN_OUT

JSON = Any
CHAT: JSON = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
LIKELY = 300
"""A token that the tests choose by a bias."""


@pytest.fixture
def session(real_proxy: ProxyProcess, real_engine: Engine) -> AgentSession:
    return replace(real_proxy.start_session(), patience=SGLANG_START)  # it may compile a large grammar first


def ask(session: AgentSession, **fields: JSON) -> JSON:
    reply = session.raw_chat({**CHAT, **fields})
    assert reply.status_code == 200, reply.text
    assert "x-rolloutfleet-ignored" not in reply.headers
    return reply.json()["choices"][0]


def last(session: AgentSession, log: RequestLog) -> tuple[JSON, Answered]:
    """The last turn, and what the engine itself says of it: they agree."""
    turn, made = session.turns()[-1], log.answered(session.session_id)[-1]
    assert_kept(turn, made)
    return turn, made


def test_a_bias_makes_a_token_certain_or_impossible(session: AgentSession, request_log: RequestLog) -> None:
    ask(session, logit_bias={str(LIKELY): 100}, temperature=1)
    turn, made = last(session, request_log)
    assert made.request["sampling_params"]["logit_bias"] == {str(LIKELY): 100}
    assert turn["output_ids"] == [LIKELY] * 20
    # Of the distribution as it was changed: the token's own log-probability is far below.
    assert max(map(abs, turn["logprobs"])) < 1e-3
    assert turn["biased_by"] == ["logit_bias"]

    ask(session, temperature=0)
    unbiased, _ = last(session, request_log)
    first = unbiased["output_ids"][0]
    ask(session, temperature=0, logit_bias={str(first): -100})
    turn, _ = last(session, request_log)
    assert first not in turn["output_ids"] and turn["output_ids"][0] != first
    assert unbiased["biased_by"] is None and turn["biased_by"] == ["logit_bias"]


@pytest.mark.parametrize("pattern", ["[a-z]{2}", "[aeiou][^aeiou]"])
def test_a_stop_pattern_ends_a_turn_whose_tokens_and_text_hold_the_match(
    session: AgentSession,
    request_log: RequestLog,
    pattern: str,
) -> None:
    asked = {"temperature": 0, "max_tokens": 60, "chat_template_kwargs": {"enable_thinking": False}}
    whole = ask(session, **asked)["message"]["content"]
    before, _ = last(session, request_log)
    choice = ask(session, **asked, stop_regex=pattern)
    turn, made = last(session, request_log)
    assert made.request["sampling_params"]["stop_regex"] == [pattern]
    assert made.reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": pattern}
    assert choice["finish_reason"] == turn["finish_reason"] == "stop"
    assert turn["output_ids"] == before["output_ids"][: len(turn["output_ids"])]
    assert whole.startswith(choice["message"]["content"])
    assert choice["message"]["content"] == made.reply["text"]
    assert turn["biased_by"] is None


@pytest.mark.parametrize("given", ["field", "text", "response_format"])
def test_a_structural_tag_holds_what_follows_its_trigger(
    session: AgentSession,
    request_log: RequestLog,
    sglang: Installed,
    given: str,
) -> None:
    """A bias writes the trigger wherever that is allowed: behind it the structure stands, not the trigger again."""
    [token] = Tokenizer.from_file(str(sglang.model("first") / "tokenizer.json")).encode("a").ids
    structure = {"begin": "a[[", "schema": {"type": "integer"}, "end": "]]"}
    tag = {"type": "structural_tag", "structures": [structure], "triggers": ["a"]}
    sent: JSON = {"response_format": tag} if given == "response_format" else {"structural_tag": tag}
    if given == "text":
        sent = {"structural_tag": json.dumps(tag)}
    ask(session, logit_bias={str(token): 100}, **sent)
    turn, made = last(session, request_log)
    assert json.loads(made.request["sampling_params"]["structural_tag"]) == tag
    assert re.match(r"a\[\[(-|\d)", made.reply["text"])
    assert (turn["constrained"], turn["biased_by"]) == ("structural_tag", ["logit_bias"])


def test_custom_parameters_reach_the_engine(session: AgentSession, request_log: RequestLog) -> None:
    given = {"thinking_budget": 5, "ids": [1, 2], "of": {"a": None, "b": 0.5}}
    ask(session, custom_params=given)
    turn, made = last(session, request_log)
    assert made.request["sampling_params"]["custom_params"] == given
    assert turn["biased_by"] == ["custom_params"]


@pytest.mark.parametrize("token", [2047, 2048])
def test_the_engines_vocabulary_is_the_proxys(session: AgentSession, token: int) -> None:
    """What is refused here the engine would refuse as well, and it takes what is not."""
    reply = session.raw_chat({**CHAT, "logit_bias": {str(token): 1}})
    assert reply.status_code == (200 if token == 2047 else 400), reply.text


def padded(text: str) -> str:
    """As long as a grammar may be, with a comment behind."""
    return f"{text}\n#{' ' * (MAX_GRAMMAR_BYTES - len(text) - 2)}"


FULL_ENUM = {"enum": [f"value{number:05}" for number in range(4_600)]}
FULL_OBJECT = {"type": "object", "properties": {f"property{number:04}": {"type": "string"} for number in range(1_600)}}
DEEP = {"items": {"items": {"type": "boolean"}, "type": "array", "maxItems": 900}, "type": "array", "maxItems": 1_000}

ITEMS = {"type": "json_schema", "json_schema": DEEP["items"]}
REPEATED = {"type": "repeat", "min": 0, "max": 1_000, "content": ITEMS}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FULL_ENUM}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": FULL_OBJECT}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}},
        {"regex": f"[a-z]{{0,{MAX_WRITTEN_OUT}}}"},
        {"regex": "|".join(f"word{number}" for number in range(6_500))},
        {"ebnf": padded(f'root ::= ("a" | "b"){{0,{MAX_WRITTEN_OUT // 3}}}')},
        {"structural_tag": {"type": "structural_tag", "format": REPEATED}},
    ],
    ids=["enum", "object", "counts", "regex", "alternatives", "ebnf", "structural tag"],
)
async def test_a_grammar_at_its_bounds_is_compiled_and_stops_nobody(
    session: AgentSession, real_engine: Engine, fields: JSON
) -> None:
    ask(session, **fields)
    assert (await real_engine.get("/health")).status == 200
