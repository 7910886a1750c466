"""A call's events as a response, whole and streamed, the same whenever it is given."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response
from tests.unit.proxy.dialects.conversations import call, parts_of
from tests.unit.proxy.dialects.openai_responses.responses import (
    EVENT,
    FIND,
    PATCH,
    SEARCH,
    SPAWN,
    Json,
    asked,
    encoder,
    events,
    streamed,
    turn,
    whole,
)

from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.openai_responses.encoder import error_event
from rolloutfleet_proxy.dialects.openai_responses.items import read_input
from rolloutfleet_proxy.domain.errors import ContextExceeded, DomainError, EngineOverloaded, SessionDeleted
from rolloutfleet_proxy.domain.events import (
    Committed,
    Delta,
    Event,
    Reasoning,
    Started,
    Text,
    Tokens,
    ToolCall,
    events_of,
)
from rolloutfleet_proxy.domain.turn import Extras, Turn

STARTED = Started("turn-abc", 1_700_000_000.75, 7)
TOOLS = [FIND, SPAWN, PATCH, SEARCH]
texts = st.text(min_size=1, max_size=5)


@st.composite
def outputs(draw: st.DrawFn) -> dict[str, Json]:
    """Answers as `Generated.output` has them."""
    found: dict[str, Json] = {"role": "assistant", "content": draw(texts | st.just(""))}
    names = st.sampled_from(["find", "agents__spawn", "agents__tell", "apply_patch", "undeclared"])
    arguments = st.sampled_from(["{}", '{"input": "a\\nb"}', '{"input": 1}', '{"input": "a", "b": 1}'])
    calls = draw(st.lists(st.tuples(names, arguments), max_size=3))
    if calls:
        found["tool_calls"] = [call(*each, f"call_{index}") for index, each in enumerate(calls)]
        found["content"] = found["content"] or None
    if draw(st.booleans()):
        found["reasoning_content"] = draw(texts)
    return found


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    output = draw(outputs())
    end = draw(st.sampled_from(["length", "tool_calls" if "tool_calls" in output else "stop"]))
    return turn(output=output, finish_reason=end)


@st.composite
def happened(draw: st.DrawFn, made: st.SearchStrategy[Turn]) -> tuple[Turn, list[Event]]:
    """A turn, and what the call that made it may have looked like: deltas of any sizes, of all kinds in any order."""
    output = (said := draw(made)).output
    reasoning, content = output.get("reasoning_content") or "", output["content"] or ""
    calls = [
        ToolCall(index, each["id"], each["function"]["name"], each["function"]["arguments"])
        for index, each in enumerate(output.get("tool_calls", ()))
    ]
    lanes: list[list[Delta]] = [[Reasoning(each) for each in reasoning], [Text(each) for each in content], [*calls]]
    deltas: list[Delta] = []
    while any(lanes):
        lane = draw(st.sampled_from([each for each in lanes if each]))
        deltas.append(lane.pop(0))
    done = replace(said, extras=Extras(parts=parts_of(deltas)))
    return done, [STARTED, *deltas, Committed(done)]


def assembled(stream: list[dict[str, Json]]) -> Json:
    """What a client has of a stream that keeps each finished item."""
    return [event["item"] for event in stream if event["type"] == "response.output_item.done"]


def by_deltas(stream: list[dict[str, Json]]) -> dict[str, str]:
    """The text of each item, as a client has it that joins the deltas."""
    found: dict[str, str] = {}
    for event in stream:
        if event["type"] == "response.output_item.added":
            found[event["item"]["id"]] = ""
        if event["type"].endswith(".delta"):
            found[event["item_id"]] += event["delta"]
    return found


def text_of(item: dict[str, Json]) -> str:
    text: str | None = item.get("arguments", item.get("input"))
    return item["content"][0]["text"] if text is None else text


def test_a_response() -> None:
    answer = whole(turn(), asked(instructions="Be brief.", tools=[FIND], metadata={"a": "b"}, temperature=0.5))
    assert (answer["id"], answer["status"], answer["model"]) == ("resp_turn-abc", "completed", "some-model")
    assert (answer["created_at"], answer["error"], answer["incomplete_details"]) == (1_700_000_000, None, None)
    assert (answer["instructions"], answer["tools"], answer["metadata"]) == ("Be brief.", [FIND], {"a": "b"})
    reasoning, message = answer["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "So."}]
    assert (reasoning["summary"], reasoning["encrypted_content"], reasoning["status"]) == ([], None, "completed")
    assert message["content"] == [{"type": "output_text", "text": "Hello é", "annotations": [], "logprobs": []}]
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (7, 5)
    assert answer["usage"]["total_tokens"] == 12
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 0


def test_cached_tokens() -> None:
    answer = whole(turn(extras=Extras(cached_tokens=3)), asked())
    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 3


def test_the_model_is_named_as_the_request_names_it() -> None:
    assert whole(turn(), asked(model="gpt-5"))["model"] == "gpt-5"


def test_calls_come_back_as_their_tools_were_declared() -> None:
    calls = [
        call("find", '{"q": 1}', "call_a"),
        call("agents__spawn", "{}", "call_b"),
        call("apply_patch", '{"input": "*** Begin\\n"}', "call_c"),
        call("agents__tell", '{"input": "hi"}', "call_d"),
        call("other", "{}", "call_e"),
    ]
    answer = whole(turn(output={"content": None, "tool_calls": calls}, finish_reason="tool_calls"), asked(tools=TOOLS))
    found = [{key: value for key, value in item.items() if key not in ("id", "status")} for item in answer["output"]]
    assert found == [
        {"type": "function_call", "call_id": "call_a", "name": "find", "arguments": '{"q": 1}'},
        {"type": "function_call", "call_id": "call_b", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "call_c", "name": "apply_patch", "input": "*** Begin\n"},
        {"type": "custom_tool_call", "call_id": "call_d", "name": "tell", "namespace": "agents", "input": "hi"},
        {"type": "function_call", "call_id": "call_e", "name": "other", "arguments": "{}"},
    ]


def test_a_custom_call_with_other_arguments_brings_them_as_they_are() -> None:
    calls = [call("apply_patch", '{"path": "a"}')]
    answer = whole(turn(output={"content": None, "tool_calls": calls}, finish_reason="tool_calls"), asked(tools=TOOLS))
    [item] = answer["output"]
    assert (item["input"], item["call_id"]) == ('{"path": "a"}', "call_a.raw")
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "no"}
    (said, answered), _ = read_input([item, output], [], Images(replaced=False))
    assert (said["tool_calls"], answered["tool_call_id"]) == (calls, "call_a")


@pytest.mark.parametrize(
    ("output", "statuses"),
    [
        ({"content": "a", "reasoning_content": "b"}, ["completed", "incomplete"]),
        ({"content": "", "reasoning_content": "b"}, ["incomplete"]),
        ({"content": "", "tool_calls": [call("find", "{}")]}, ["completed"]),
        ({"content": "a", "tool_calls": [call("find", "{}")]}, ["incomplete", "completed"]),
        ({"content": ""}, ["incomplete"]),
    ],
)
def test_what_the_token_limit_cut_off_is_incomplete(output: dict[str, Json], statuses: list[str]) -> None:
    answer = whole(turn(output=output, finish_reason="length"), asked())
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in answer["output"]] == statuses


def test_an_answer_without_a_word_is_a_message() -> None:
    for output in ({"content": ""}, {"content": "", "reasoning_content": "a"}):
        item = whole(turn(output=output), asked())["output"][-1]
        assert (item["type"], item["status"], text_of(item)) == ("message", "completed", "")


def test_logprobs_have_an_entry_for_every_sampled_token() -> None:
    rows: list[list[tuple[float, int]]] = [[(-0.5, 1), (-0.75, 6)], [], [], [], []]
    made, request = turn(extras=Extras(top_logprobs=rows)), asked(top_logprobs=2, stream=True)
    [_, message] = whole(made, request)["output"]
    entries = message["content"][0]["logprobs"]
    assert [entry["logprob"] for entry in entries] == [-0.5, -0.25, -1.5, -0.0, -2.0]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "Hello é<|im_end|>"
    assert [top["token"] for top in entries[0]["top_logprobs"]] == ["Hel", "Hey"]

    tokens = Tokens([1, 2, 3, 4, 5], made.logprobs, rows)
    came: list[Event] = [STARTED, Reasoning("So.", tokens), Text("Hello é"), Text(""), Committed(made)]
    stream = streamed(came, request)
    [delta] = [event for event in stream if event["type"] == "response.output_text.delta"]
    [done] = [event for event in stream if event["type"] == "response.output_text.done"]
    assert delta["logprobs"] == done["logprobs"]
    assert [[each[name] for name in ("token", "logprob")] for each in done["logprobs"]] == [
        [each[name] for name in ("token", "logprob")] for each in entries
    ]
    assert [top["token"] for top in done["logprobs"][0]["top_logprobs"]] == ["Hel", "Hey"]
    include = asked(include=["message.output_text.logprobs"])
    assert whole(made, include)["output"][1]["content"][0]["logprobs"]
    assert whole(made, asked())["output"][1]["content"][0]["logprobs"] == []


def test_a_turn_that_thinks_again_behind_its_text_has_an_item_for_each_part() -> None:
    output = {"content": "Hello there", "reasoning_content": "So. Or not.", "tool_calls": [call("find", "{}")]}
    made = turn(output=output, extras=Extras(parts=[3, 5, 8, 6]), finish_reason="tool_calls")
    items = whole(made, asked(tools=TOOLS))["output"]
    assert [(item["id"], item["status"]) for item in items] == [
        (each, "completed") for each in ("rs_abc", "msg_abc", "rs_abc_1", "msg_abc_1", "fc_abc_0")
    ]
    assert [text_of(item) for item in items] == ["So.", "Hello", " Or not.", " there", "{}"]


def test_of_parts_the_last_is_cut_off_and_the_last_message_has_the_logprobs() -> None:
    output = {"content": "Hello there", "reasoning_content": "So. Or not."}
    for parts, statuses in (
        ([3, 5, 8, 6], ["completed", "completed", "completed", "incomplete"]),
        ([3, 11, 8], ["completed", "completed", "incomplete"]),
    ):
        made = turn(output=output, extras=Extras(parts=parts), finish_reason="length")
        items = whole(made, asked(top_logprobs=1))["output"]
        assert [item["status"] for item in items] == statuses
        entries = [len(item["content"][0]["logprobs"]) for item in items if item["type"] == "message"]
        assert entries == [0] * (len(entries) - 1) + [len(made.output_ids)]


def test_the_events_of_a_stream_in_their_order() -> None:
    made = turn(
        output={"content": "Hi", "reasoning_content": "So.", "tool_calls": [call("apply_patch", '{"input": "x"}')]},
        finish_reason="tool_calls",
    )
    stream = streamed(events_of(made), asked(tools=TOOLS, stream=True))
    assert [event["type"].removeprefix("response.") for event in stream] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_item.added", "custom_tool_call_input.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("custom_tool_call_input.done", "output_item.done"),
        "completed",
    ]
    created, in_progress = (event["response"] for event in stream[:2])
    assert (created["tools"], in_progress["tools"]) == (TOOLS, [])
    assert {created["status"], in_progress["status"]} == {"in_progress"}
    added = [event["item"] for event in stream if event["type"] == "response.output_item.added"]
    assert [item.get("status") for item in added] == ["in_progress", "in_progress", None]


@given(st.data())
def test_a_stream_assembled_is_the_whole_answer_to_the_letter(data: st.DataObject) -> None:
    made, came = data.draw(happened(turns()))
    request = asked(tools=TOOLS, stream=True)
    stream = streamed(came, request)
    answer = whole(made, request)
    assert stream[-1]["response"] == answer
    assert stream[-1]["type"] == f"response.{answer['status']}"
    assert assembled(stream) == answer["output"]
    assert by_deltas(stream) == {item["id"]: text_of(item) for item in answer["output"]}
    for kind in ("added", "done"):
        said = [event for event in stream if event["type"] == f"response.output_item.{kind}"]
        assert [event["output_index"] for event in said] == list(range(len(answer["output"])))
        assert [event["item"]["id"] for event in said] == [item["id"] for item in answer["output"]]
    assert streamed(events_of(made), request)[-1]["response"] == answer


@settings(max_examples=30)
@given(st.data())
def test_the_sdk_assembles_the_whole_answer(data: st.DataObject) -> None:
    made, came = data.draw(happened(turns().filter(lambda made: made.finish_reason != "length")))
    request = asked(tools=TOOLS, stream=True)
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in streamed(came, request):
        state.handle_event(EVENT.validate_python(event))
    found = state._completed_response.model_dump(exclude={"output": {"__all__": {"content": {"__all__": {"parsed"}}}}})
    for item in found["output"]:
        item.pop("parsed_arguments", None)
    assert found == Response.model_validate(whole(made, request)).model_dump()


@given(st.data())
def test_nothing_that_a_client_acts_on_leaves_before_the_commit(data: st.DataObject) -> None:
    _, (*before, committed) = data.draw(happened(turns()))
    writer = encoder(asked(tools=TOOLS, stream=True))
    early = b"".join(map(writer.encode, before))
    kinds = {event["type"] for event in events(early)} if early else set()
    assert not any(kind.endswith((".done", ".completed", ".incomplete")) for kind in kinds)
    assert writer.encode(committed)


@given(happened(turns()))
def test_what_is_sent_back_is_the_turn(happened: tuple[Turn, list[Event]]) -> None:
    """Whatever a client keeps of the items, ids and statuses included, is read as the turn's own message."""
    ignored: list[str] = []
    made = replace(happened[0], name=f"turn-{'0123456789ab' * 2}")
    [back], _ = read_input(whole(made, asked(tools=TOOLS))["output"], ignored, Images(replaced=False))
    assert ignored == []
    assert (back["role"], back["content"] or "") == ("assistant", made.output["content"] or "")
    assert back.get("reasoning_content") == made.output.get("reasoning_content")
    given_back = [(each["id"], each["function"]["name"]) for each in back.get("tool_calls", ())]
    sampled = made.output.get("tool_calls", ())
    assert given_back == [(each["id"], each["function"]["name"]) for each in sampled]
    arguments = [json.loads(each["function"]["arguments"]) for each in back.get("tool_calls", ())]
    assert arguments == [json.loads(each["function"]["arguments"]) for each in sampled]


@given(happened(turns()))
def test_items_that_are_named_alone_are_the_turns_message(happened: tuple[Turn, list[Event]]) -> None:
    """As if they were sent back; calls are those that were stored, to the letter of their arguments."""
    request = asked(tools=TOOLS)
    made = replace(happened[0], name=f"turn-{'0123456789ab' * 2}")
    made = replace(made, extras=replace(made.extras, kept=request.kept(made.output)))
    items = whole(made, request)["output"]
    [sent_back], _ = read_input(items, [], Images(replaced=False))
    named = asked(input=[{"type": "item_reference", "id": item["id"]} for item in items])
    [message] = named.filled({made.name: made})
    assert named.refers == (made.name,)
    assert message == sent_back | ({"tool_calls": made.output["tool_calls"]} if "tool_calls" in made.output else {})


def test_silence_begins_a_stream_and_keeps_it_alive() -> None:
    writer = encoder(asked(stream=True, tools=TOOLS, instructions="Be brief."))
    assert writer.silence() == b""
    assert writer.encode(STARTED) == b""
    data = writer.silence() + writer.silence()
    first, second, third = events(data)
    assert (first["type"], second["type"], third["type"]) == (
        "response.created",
        "response.in_progress",
        "response.in_progress",
    )
    bare = third["response"]
    assert bare == second["response"]
    assert (bare["tools"], "instructions" in bare) == ([], False)
    more = events(
        data + writer.encode(Text("a")) + writer.silence() + writer.encode(Committed(turn(output={"content": "a"})))
    )
    assert [event["type"] for event in more].count("response.created") == 1


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (SessionDeleted("Gone."), "server_error", "session_deleted"),
        (EngineOverloaded("Full."), "rate_limit_exceeded", "engine_overloaded"),
    ],
)
def test_a_stream_that_fails_says_why(error: DomainError, code: str, kind: str) -> None:
    writer = encoder(asked(stream=True, tools=TOOLS))
    stream = events(writer.encode(STARTED) + writer.encode(Text("a")) + writer.failed(error))
    failed = stream[-1]["response"]
    assert (stream[-1]["type"], failed["status"], failed["output"]) == ("response.failed", "failed", [])
    assert failed["error"] == {"code": code, "message": error.message, "param": None, "type": kind}


def test_a_context_that_is_full_is_named_as_codex_reads_it() -> None:
    writer = encoder(asked(stream=True))
    writer.encode(STARTED)
    failed = json.loads(writer.failed(ContextExceeded("Too long.")).split(b"data: ")[-1])
    assert failed["response"]["error"]["code"] == "context_length_exceeded"


def test_a_context_that_is_full_is_named_in_the_message_as_langchain_reads_it() -> None:
    """It looks for the code in a 400, and for these words in the message of a stream that fails."""
    message = ContextExceeded("Too long.").message
    assert "context_length_exceeded" in message and "exceeds the context window" in message


def test_a_stream_that_was_begun_elsewhere_ends_with_an_error() -> None:
    [event] = events(error_event(SessionDeleted("Gone.")))
    assert (event["type"], event["code"], event["message"]) == ("error", "session_deleted", "Gone.")
