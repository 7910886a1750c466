"""The quickstart's checks fail where something was lost, changed or never looked at."""

from dataclasses import replace
from typing import Any

from examples.quickstart import checks
from examples.quickstart.checks import Check, Taken
from examples.quickstart.record import Answer, Record

FIRST = Answer(
    session_id="s",
    turn_id="t1",
    finish_reason="stop",
    content="yes",
    reasoning="",
    tool_calls=(),
    completion_tokens=2,
    logprobs=(-0.5, -0.25),
    follows_up=False,
    appends=True,
    streamed=False,
)
SECOND = replace(FIRST, turn_id="t2", follows_up=True, content="no")
RECORD = Record([FIRST, SECOND])


def turn(turn_id: str, parent_id: str | None, **more: Any) -> dict[str, Any]:
    base = {"finish_reason": "stop", "completion_tokens": 2, "logprobs": [-0.5, -0.25]}
    return {"turn_id": turn_id, "parent_id": parent_id, **base, **more}


TURNS = {"t1": turn("t1", None), "t2": turn("t2", "t1")}
EXPORT = {
    "trajectories": [
        {
            "session_id": "s",
            "turns": [
                {"turn_id": "t1", "parent_id": None, "message": {"content": "yes"}},
                {"turn_id": "t2", "parent_id": "t1", "message": {"content": "no", "tool_calls": []}},
            ],
            "rows": [
                {"turn_ids": ["t1"], "tensors": {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 0, 1, 1]}},
                {"turn_ids": ["t2"], "tensors": {"input_ids": [1, 2, 3, 4, 9, 5, 6], "loss_mask": [0] * 5 + [1, 1]}},
            ],
        }
    ]
}
LOG = [
    {"input_ids": [1, 2], "output_ids": [3, 4]},
    {"input_ids": [1, 2, 3, 4, 9], "output_ids": [5, 6]},
]


def taken() -> dict[str, Taken]:
    return checks.taken_turns([EXPORT])


def test_a_check_that_compared_nothing_has_failed() -> None:
    assert not Check("any", 0, 0).ok
    assert Check("any", 3, 3).ok
    assert not Check("any", 2, 3).ok


def test_a_run_without_loss_passes() -> None:
    for check in (
        checks.answers_are_kept(RECORD, TURNS),
        checks.turns_were_answers(RECORD, TURNS),
        checks.answers_are_exported(RECORD, taken()),
        checks.tokens_are_the_engines(taken(), LOG),
        checks.follow_ups_extend(RECORD, TURNS),
        checks.prefixes_hold(taken()),
    ):
        assert check.ok, check
    assert checks.branches(TURNS.values()) == 1


def test_a_lost_turn_is_seen() -> None:
    assert checks.answers_are_kept(RECORD, {"t1": TURNS["t1"]}).passed == 1
    assert checks.answers_are_exported(RECORD, {"t1": taken()["t1"]}).passed == 1


def test_another_logprob_is_seen() -> None:
    assert not checks.answers_are_kept(RECORD, {**TURNS, "t2": turn("t2", "t1", logprobs=[-0.5, -0.26])}).ok


def test_a_retry_that_became_a_second_turn_is_seen() -> None:
    assert not checks.turns_were_answers(RECORD, {**TURNS, "t3": turn("t3", "t1")}).ok


def test_text_that_differs_is_seen() -> None:
    other = {**taken(), "t2": replace(taken()["t2"], message={"content": "maybe"})}
    assert not checks.answers_are_exported(RECORD, other).ok


def test_an_id_that_the_engine_did_not_make_is_seen() -> None:
    other = {**taken(), "t2": replace(taken()["t2"], input_ids=[1, 2, 3, 4, 9, 5, 7])}
    assert checks.tokens_are_the_engines(other, LOG).passed == 1


def test_a_branch_of_an_agent_that_only_appends_is_seen() -> None:
    assert not checks.follow_ups_extend(RECORD, {**TURNS, "t2": turn("t2", None)}).ok


def test_a_child_that_does_not_begin_with_its_parent_is_seen() -> None:
    other = {**taken(), "t2": replace(taken()["t2"], input_ids=[1, 2, 3, 8, 9, 5, 6])}
    assert not checks.prefixes_hold(other).ok


def test_sums_that_differ_are_seen_whatever_the_proxy_says() -> None:
    sums = {"created": 2, "imported": 0, "live": 1, "leased": 0, "acknowledged": 0, "dumped": 0, "discarded": {"x": 1}}
    audit = {"balanced": True, "turns": sums, "sessions": sums}
    assert checks.sums_are_equal([audit], "sums").ok
    assert not checks.sums_are_equal([audit, {**audit, "turns": {**sums, "live": 2}}], "sums").ok
    assert not checks.sums_are_equal([{**audit, "balanced": False}], "sums").ok
