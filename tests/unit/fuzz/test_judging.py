"""Every way in which an answer can be wrong is called so."""

import json
from typing import Any

import pytest
from tests.integration.fuzz.judging import API, KEY, code_of, faults_of, statuses_by_code
from tests.integration.fuzz.wire import Answer

from rolloutfleet import errors

SECRETS = [b"the-admin-key", b"/state/of/the/fleet"]
ERROR = {"message": "No.", "type": "invalid_request_error", "param": None, "code": errors.INVALID_REQUEST}
A_KEY = "rf-0-0123456789ab-" + "k" * 43


def answer(status: int, body: Any, media: str = "application/json", **headers: str) -> Answer:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Answer(status, {"content-type": media, **headers}, text, closes=False)


def faults(found: Answer, *, method: str = "GET", shows_keys: bool = False) -> list[str]:
    return faults_of(found, method=method, secrets=SECRETS, shows_keys=shows_keys)


@pytest.mark.parametrize(
    "right",
    [
        answer(200, {"ok": True}),
        answer(204, b""),
        answer(400, {"error": ERROR}),
        answer(404, {"error": {**ERROR, "code": errors.SHARD_UNKNOWN}, "missing": ["a"]}),
        answer(503, {"error": {**ERROR, "type": "server_error", "code": errors.DRAINING}}),
        answer(507, {"error": {**ERROR, "type": "server_error", "code": errors.STORE_FULL}}),
        answer(200, b'data: {"choices": []}\n\ndata: [DONE]\n\n', "text/event-stream"),
    ],
    ids=lambda right: str(right.status),
)
def test_what_is_right_is_let_pass(right: Answer) -> None:
    assert faults(right) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (answer(500, {"error": {**ERROR, "type": "server_error", "code": errors.INTERNAL}}), "an unhandled 500"),
        (answer(502, {"error": {**ERROR, "type": "server_error", "code": errors.ENGINE_ERROR}}), "an unhandled 502"),
        (answer(500, b"Internal Server Error", "text/plain"), "without the documented form"),
        (answer(400, {"detail": "no"}), "without the documented form"),
        (answer(400, {"error": {"message": "No."}}), "without the documented form"),
        (answer(400, {"error": {**ERROR, "code": "made_up"}}), "docs/api.md does not say"),
        (answer(404, {"error": {**ERROR, "code": errors.INVALID_KEY}}), "docs/api.md does not say"),
        (answer(400, {"error": {**ERROR, "message": ""}}), "without a message"),
        (answer(400, {"error": {**ERROR, "type": "oops"}}), "of type 'oops'"),
        (answer(400, {"error": ERROR}, "text/html"), "an error that is not application/json"),
        (answer(307, b"", location="http://elsewhere"), "nowhere in the documentation"),
        (
            answer(200, b'data: {"error": {"code": "internal"}}\n\n', "text/event-stream"),
            "a stream ended with internal",
        ),
        (answer(200, {"a": "the-admin-key"}), "a secret"),
        (answer(200, {}, warning="in /state/of/the/fleet/store"), "a secret"),
        (answer(200, {"session": A_KEY}), "a session's key"),
        (answer(400, {"error": {**ERROR, "message": "Traceback (most recent call last)"}}), "the inside"),
        (answer(400, {"error": {**ERROR, "message": "RequestInfo(url=1)"}}), "the inside"),
        (answer(400, {"error": {**ERROR, "message": "<Fleet object at 0x7f>"}}), "the inside"),
    ],
    ids=lambda each: each if isinstance(each, str) else str(each.status),
)
def test_what_is_wrong_is_said(wrong: Answer, said: str) -> None:
    assert any(said in fault for fault in faults(wrong)), faults(wrong)


def test_a_start_alone_shows_keys() -> None:
    assert KEY.search(A_KEY.encode())
    started = answer(201, {"api_key": A_KEY})
    assert faults(started, shows_keys=True) == [] and faults(started) != []


def test_an_answer_to_head_has_no_body_to_judge() -> None:
    assert faults(answer(405, b""), method="HEAD") == [] and faults(answer(405, b"")) != []


def test_codes_are_read_from_bodies_and_streams() -> None:
    assert code_of(answer(400, {"error": ERROR})) == errors.INVALID_REQUEST
    assert code_of(answer(200, b'data: {"error": {"code": "internal"}}\n\n', "text/event-stream")) == errors.INTERNAL
    assert code_of(answer(200, {"error": ERROR})) is None


def test_the_statuses_of_codes_are_those_of_the_documentation() -> None:
    told = statuses_by_code()
    assert told[errors.INVALID_REQUEST] == {400, 406} and told[errors.METHOD_NOT_ALLOWED] == {405}
    assert {code for code in told if f"`{code}`" not in API.read_text()} == set()
    assert len(told) > 50
