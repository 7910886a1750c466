"""Items that a request names instead of sending them are taken from the answers of their turns."""

from typing import Any

import pytest
from tests.unit.proxy.dialects.conversations import call
from tests.unit.proxy.dialects.openai_responses.responses import PATCH, Json, asked

from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter, UnknownParameter
from rolloutfleet_proxy.domain.messages import NO_ARGS, conversation
from rolloutfleet_proxy.domain.turn import Answer, Extras

FIRST, SECOND = "0123456789ab" * 2, "ba9876543210" * 2
CALLS = [call("find", '{"q": 1}', "call_a"), call("apply_patch", '{"input": "x"}', "call_b")]
OUTPUT = {"role": "assistant", "content": "ac", "reasoning_content": "bd", "tool_calls": CALLS}
KEPT = {"declared": {"apply_patch": {"name": "apply_patch", "custom": True}}}
ANSWERS = {
    f"turn-{FIRST}": Answer(OUTPUT, "tool_calls", Extras(parts=[1, 1, 1, 1], kept=KEPT)),
    f"turn-{SECOND}": Answer({"role": "assistant", "content": ""}, "stop", Extras()),
}


def reference(name: str) -> dict[str, Json]:
    return {"type": "item_reference", "id": name}


def filled(*items: Json) -> list[Json]:
    return asked(input=list(items)).filled(ANSWERS)


def refused(*items: Json) -> tuple[str | None, str]:
    with pytest.raises(InvalidParameter) as caught:
        filled(*items)
    return caught.value.param, caught.value.message


def test_each_item_is_what_it_names() -> None:
    user = {"role": "user", "content": "?"}
    names = (f"rs_{FIRST}", f"msg_{FIRST}", f"rs_{FIRST}_1", f"msg_{FIRST}_1", f"fc_{FIRST}_0", f"ctc_{FIRST}_1")
    alone = filled(*(each for name in names for each in (reference(name), user)))[::2]
    said: dict[str, Any] = {"role": "assistant", "content": None}
    assert alone == [
        {**said, "reasoning_content": "b"},
        {**said, "content": "a"},
        {**said, "reasoning_content": "d"},
        {**said, "content": "c"},
        {**said, "tool_calls": CALLS[:1]},
        {**said, "tool_calls": CALLS[1:]},
    ]
    assert filled(*map(reference, names)) == [OUTPUT]


def test_a_message_that_says_nothing_is_named_too() -> None:
    assert filled(reference(f"msg_{SECOND}")) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("untyped", [{"id": f"msg_{FIRST}"}, {"id": f"msg_{FIRST}", "type": None}])
def test_an_id_alone_is_a_reference(untyped: Json) -> None:
    assert filled(untyped) == [{"role": "assistant", "content": "a"}]


def test_items_that_are_named_and_items_that_are_sent_are_one_message() -> None:
    content = [{"type": "output_text", "text": "!"}]
    sent = {"type": "message", "role": "assistant", "id": f"msg_{FIRST}_1", "content": content}
    messages = filled(
        {"role": "user", "content": "?"},
        reference(f"msg_{FIRST}"),
        sent,
        reference(f"fc_{FIRST}_0"),
        {"type": "function_call_output", "call_id": "call_a", "output": "found"},
        reference(f"msg_{SECOND}"),
    )
    assert messages[1:] == [
        {"role": "assistant", "content": "a!", "tool_calls": CALLS[:1]},
        {"role": "tool", "tool_call_id": "call_a", "content": "found"},
        {"role": "assistant", "content": ""},
    ]


def test_a_turn_is_read_once_however_many_of_its_items_are_named() -> None:
    request = asked(input=[reference(f"{kind}_{turn}") for turn in (FIRST, SECOND) for kind in ("rs", "msg", "fc")])
    assert request.refers == (f"turn-{FIRST}", f"turn-{SECOND}")
    assert not request.is_whole and asked().is_whole


@pytest.mark.parametrize(
    "name",
    [
        f"msg_{FIRST}_2",
        f"msg_{FIRST}_0",
        f"msg_{FIRST}_01",
        f"fc_{FIRST}",
        f"fc_{FIRST}_1",
        f"ctc_{FIRST}_0",
        f"rs_{SECOND}",
        f"msg_{'0' * 24}",
        f"fco_{FIRST}",
        FIRST,
    ],
)
def test_an_id_that_no_turn_gave_an_item_is_refused_with_its_place(name: str) -> None:
    param, message = refused({"role": "user", "content": "?"}, reference(name))
    assert param == "input[1].id"
    assert message.startswith("input[1].id: ") and "send the item itself" in message


def test_an_item_is_named_once() -> None:
    named = reference(f"msg_{FIRST}")
    param, message = refused(named, {"role": "user", "content": "?"}, named)
    assert (param, "input[0]" in message) == ("input[2].id", True)


def test_other_fields_are_ignored_and_named() -> None:
    named = {**reference(f"msg_{FIRST}"), "content": "b"}
    assert asked(input=[named]).ignored == ("input[0].content",)
    with pytest.raises(UnknownParameter):
        asked(Reading(strict=True), input=[named])


def test_requests_that_name_other_items_are_told_apart() -> None:
    names = ("rs", "msg", "fc")
    requests = [asked(input=[reference(f"{name}_{turn}")]) for name in names for turn in (FIRST, SECOND)]
    digests = [conversation(request.messages, NO_ARGS) for request in requests]
    assert len({(digest.chains[-1], *digest.reasonings) for digest in digests}) == 6


def test_a_mistake_beside_a_reference_is_refused_before_any_turn_is_read() -> None:
    with pytest.raises(DomainError) as caught:
        asked(input=[reference(f"msg_{FIRST}")], tools=[{**PATCH, "format": 1}])
    assert caught.value.param == "tools[0].format"
