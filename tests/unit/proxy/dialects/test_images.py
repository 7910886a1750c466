"""An image is refused by name, or one text stands in its place: the same in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolloutfleet.errors import UNSUPPORTED_PARAMETER
from rolloutfleet_proxy.capture.retries import digest_of
from rolloutfleet_proxy.dialects.anthropic_messages.request import parse_messages
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.images import PLACEHOLDER
from rolloutfleet_proxy.dialects.openai_chat.request import parse_chat
from rolloutfleet_proxy.dialects.openai_responses.request import parse_responses
from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.messages import conversation

Json = Any
DATA = "data:image/png;base64,iVBORw0KGgo="
REPLACING = Reading(replaces_images=True)
USER, SHOT = "Look: ", "The screen: "

CALL = {"id": "c1", "type": "function", "function": {"name": "shoot", "arguments": "{}"}}


def chat_image(**more: Json) -> Json:
    return {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}, **more}


def messages_image(**more: Json) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}, **more}


def responses_image(**more: Json) -> Json:
    return {"type": "input_image", "image_url": DATA, "detail": "auto", **more}


def by_chat(image: Json, reading: Reading = REPLACING) -> TurnRequest:
    parts = [{"type": "text", "text": USER}, image]
    shot = [{"type": "text", "text": SHOT}, image]
    said = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": shot},
    ]
    return parse_chat(json.dumps({"messages": said}).encode(), reading)


def by_messages(image: Json, reading: Reading = REPLACING) -> TurnRequest:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": SHOT}, image]}
    said = [
        {"role": "user", "content": [{"type": "text", "text": USER}, image]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "shoot", "input": {}}]},
        {"role": "user", "content": [result]},
    ]
    return parse_messages(json.dumps({"max_tokens": 9, "messages": said}).encode(), reading)


def by_responses(image: Json, reading: Reading = REPLACING) -> TurnRequest:
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": USER}, image]},
        {"type": "function_call", "call_id": "c1", "name": "shoot", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": SHOT}, image]},
    ]
    return parse_responses(json.dumps({"input": said}).encode(), reading)


DIALECTS = [
    pytest.param(by_chat, chat_image, id="chat"),
    pytest.param(by_messages, messages_image, id="messages"),
    pytest.param(by_responses, responses_image, id="responses"),
]


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_one_text_stands_for_each_image_of_users_and_tools(ask: Json, image: Json) -> None:
    request = ask(image())
    texts = [message["content"] for message in request.messages if message["role"] != "assistant"]
    joined = [text if isinstance(text, str) else "".join(part["text"] for part in text) for text in texts]
    assert joined == [USER + PLACEHOLDER, SHOT + PLACEHOLDER]
    assert (request.placeholders, request.ignored, request.stripped) == (2, (), ())


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_nothing_of_an_image_is_kept(ask: Json, image: Json) -> None:
    assert "iVBOR" not in str(ask(image()))


def test_a_conversation_with_images_is_the_same_in_every_dialect() -> None:
    asked = [by_chat(chat_image()), by_messages(messages_image()), by_responses(responses_image())]
    chains = {conversation(request.messages, request.template).chains[-1] for request in asked}
    assert len(chains) == 1


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_images_are_refused_by_name_unless_the_fleet_replaces_them(ask: Json, image: Json) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(image(), Reading())
    assert refused.value.code == UNSUPPORTED_PARAMETER
    assert refused.value.param in ("messages[0].content[1].type", "input[0].content[1].type")
    assert "compatibility: {images: placeholder}" in refused.value.message


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_other_fields_of_an_image_are_named(ask: Json, image: Json) -> None:
    named = ask(image(uuid="a")).ignored
    assert [path.rpartition(".")[2] for path in named] == ["uuid"] * 2


def test_where_a_cache_is_to_end_is_stripped_from_an_image_too() -> None:
    assert by_messages(messages_image(cache_control={"type": "ephemeral"})).stripped == ("cache_control",)
    assert by_chat(chat_image(cache_control={"type": "ephemeral"})).ignored == ()


def test_an_image_may_be_a_file_in_the_responses_api() -> None:
    assert by_responses({"type": "input_image", "file_id": "file-1", "detail": "high"}).placeholders == 2


@pytest.mark.parametrize(
    ("ask", "image", "param"),
    [
        (by_chat, {"type": "image_url"}, "messages[0].content[1].image_url"),
        (by_chat, chat_image(image_url=1), "messages[0].content[1].image_url"),
        (by_messages, {"type": "image"}, "messages[0].content[1].source"),
        (by_messages, messages_image(source=DATA), "messages[0].content[1].source"),
        (by_responses, {"type": "input_image"}, "input[0].content[1].image_url"),
        (by_responses, responses_image(image_url={"url": DATA}), "input[0].content[1].image_url"),
        (by_responses, {"type": "input_image", "file_id": 1}, "input[0].content[1].file_id"),
        (by_chat, {"type": "input_audio", "input_audio": {}}, "messages[0].content[1].type"),
        (by_chat, {"type": "file", "file": {}}, "messages[0].content[1].type"),
        (by_messages, {"type": "document", "source": {"type": "base64"}}, "messages[0].content[1].source.type"),
        (by_responses, {"type": "input_file", "file_id": "f"}, "input[0].content[1].type"),
        (by_responses, {"type": "input_audio", "input_audio": {}}, "input[0].content[1].type"),
    ],
)
def test_what_is_no_image_stays_refused(ask: Json, image: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(image)
    assert refused.value.param == param


def test_images_of_documents_and_search_results_count_too() -> None:
    blocks = [
        {"type": "document", "source": {"type": "content", "content": [messages_image()]}},
        {"type": "search_result", "source": "s", "title": "t", "content": [messages_image()]},
    ]
    said = [{"role": "user", "content": blocks}]
    request = parse_messages(json.dumps({"max_tokens": 9, "messages": said}).encode(), REPLACING)
    assert request.placeholders == 2 and request.messages[0]["content"].count(PLACEHOLDER) == 2


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_a_request_with_another_image_is_no_retry_of_this_one(ask: Json, image: Json) -> None:
    def digest(shown: Json) -> bytes:
        request = ask(shown)
        return digest_of(request, conversation(request.messages, request.template), MAIN)

    other = json.loads(json.dumps(image()).replace("iVBORw0KGgo=", "iVBORw0KGgp="))
    assert digest(image()) == digest(image()) != digest(other)
    assert ask(other).messages == ask(image()).messages


def test_each_image_of_a_request_and_their_order_tell_it_from_a_retry() -> None:
    def digest(*urls: str) -> bytes:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        request = parse_chat(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), REPLACING)
        return digest_of(request, conversation(request.messages, request.template), MAIN)

    one, other = DATA, DATA.replace("iVBORw0KGgo=", "iVBORw0KGgp=")
    assert len({digest(one, one), digest(one, other), digest(other, one), digest(other, other)}) == 4


@pytest.mark.parametrize(("ask", "image"), DIALECTS)
def test_an_image_is_as_deep_as_other_values(ask: Json, image: Json) -> None:
    deep: Json = {}
    for _ in range(100):
        deep = {"a": deep}
    field = next(name for name in ("image_url", "source") if name in image())
    with pytest.raises(InvalidRequest) as refused:
        ask(image(**{field: deep}))
    assert refused.value.param is not None and refused.value.param.endswith(f".{field}")
