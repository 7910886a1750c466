import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from rolloutfleet import errors, wire


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (wire.GiveReward, {"reward": True}),
        (wire.GiveReward, {"reward": "1"}),
        (wire.GiveReward, {"reward": None}),
        (wire.GiveReward, {"reward": math.nan}),
        (wire.GiveReward, {"reward": math.inf}),
        (wire.GiveReward, {"reward": 1e39}),
        (wire.GiveReward, {"reward": 10**400}),
        (wire.GiveReward, {"reward": 1.0, "close": 1}),
        (wire.GiveReward, {"reward": 1.0, "turn_id": ""}),
        (wire.GiveReward, {"reward": 1.0, "note": "x"}),
        (wire.StartSessions, {"group_size": 0}),
        (wire.StartSessions, {"group_size": 1.0}),
        (wire.StartSessions, {"group_size": True}),
        (wire.StartSessions, {"stale_after": "1h"}),
        (wire.StartSessions, {"stale_after": 0}),
        (wire.StartSessions, {"await_reward": 0}),
        (wire.StartSessions, {"await_reward": True}),
        (wire.StartSessions, {"train": 0}),
        (wire.StartSessions, {"replaces": ""}),
        (wire.StartSessions, {"group": {"quorum": 1, "deadline": 1.0}}),
        (wire.StartSessions, {"group_size": 2, "group": {"quorum": 3, "deadline": 1.0}}),
        (wire.StartSessions, {"group_size": 2, "group": {"quorum": 0, "deadline": 1.0}}),
        (wire.StartSessions, {"group_size": 2, "group": {"quorum": 2, "deadline": 0}}),
        (wire.StartSessions, {"group_size": 2, "group": {"quorum": 2}}),
        (wire.StartSessions, {"replaces": "s0-a", "group_size": 2}),
        (wire.StartSessions, {"limits": {"turns": 0}}),
        (wire.StartSessions, {"limits": {"turn": 1}}),
        (wire.StartSessions, {"metadata": {"x": math.nan}}),
        (wire.StartSessions, {"metadata": {"x": "é" * 70_000}}),
        (wire.StartSessions, {"metadata": {"x": "\ud800" * 70_000}}),
        (wire.StartSessions, {"agent_may": ["export"]}),
        (wire.StartSessions, {"agent_may": ["close", "close"]}),
        (wire.StartSessions, {"task_id": "x" * 513}),
        (wire.StartSessions, {"sampling": {"defaults": {"temperature": "1"}}}),
        (wire.StartSessions, {"sampling": {"defaults": {"temperature": math.nan}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"topP": 1}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"top_p": 0}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"top_k": 0}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"top_k": True}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"max_tokens": 2**31}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"chat_template_kwargs": {"x": math.nan}}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"chat_template_kwargs": {"x": "\ud800"}}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"chat_template_kwargs": {"x": "é" * 10_000}}}}),
        (wire.StartSessions, {"sampling": {"overrides": {"chat_template_kwargs": {"x": nested(64)}}}}),
        (wire.AskExport, {"session_ids": ["a"], "group_id": "b"}),
        (wire.AskExport, {"session_ids": []}),
        (wire.AskExport, {"session_ids": ["a", "a"]}),
        (wire.AskExport, {"max_trajectories": 0}),
        (wire.AskExport, {"discount": 1.1}),
        (wire.AskExport, {"discount": math.nan}),
        (wire.AskExport, {"style": "other"}),
        (wire.AskExport, {"lease_seconds": 0}),
        (wire.SetVersion, {"version": 1.5}),
        (wire.SetVersion, {"version": -1}),
        (wire.SetVersion, {"version": 2**31}),
        (wire.Pause, {"mode": "stop"}),
        (wire.Pause, {"timeout": math.inf}),
        (wire.Recover, {"version": 1, "run": 1, "newer": "ask"}),
        (wire.AskDrain, {"id": "", "mode": "quiesce"}),
    ],
)
def test_a_wrong_request_is_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_requests_have_the_contracts_defaults() -> None:
    export = wire.AskExport.model_validate({})
    assert (export.style, export.as_, export.discount) == ("concat", "tensors", 1.0)
    assert (export.lease_seconds, export.most) == (600.0, 64)
    assert wire.AskExport.model_validate({"as": "shards"}).as_ == "shards"
    drain = wire.AskDrain.model_validate({"id": "a"})
    assert (drain.mode, drain.then, drain.ttl) == ("quiesce", "stay", 300)
    pause = wire.Pause.model_validate({})
    assert (pause.mode, pause.timeout, pause.epoch) == ("abort", 60, None)
    assert wire.StartSessions.model_validate({}).group_size == 1


def test_a_start_with_nothing_new_is_what_an_older_proxy_reads_and_bound_a_key_to() -> None:
    said = {"task_id", "group_size", "stale_after", "limits", "metadata", "agent_may"}
    assert json.loads(wire.StartSessions().model_dump_json()).keys() == said


def test_a_sessions_sampling_is_sent_as_it_was_said() -> None:
    asked = wire.StartSessions.model_validate(
        {"sampling": {"defaults": {"temperature": 1, "chat_template_kwargs": {"x": None, "y": nested(63)}}}}
    )
    said = json.loads(asked.model_dump_json(by_alias=True, exclude_none=True))["sampling"]
    kwargs = {"x": None, "y": nested(63)}
    assert said == {"defaults": {"temperature": 1.0, "chat_template_kwargs": kwargs}, "overrides": {}}


@pytest.mark.parametrize(
    ("body", "closes"),
    [
        ({"reward": 1}, True),
        ({"reward": 1, "turn_id": "t"}, False),
        ({"reward": 1, "turn_id": "t", "close": True}, True),
        ({"reward": 1, "close": False}, False),
    ],
)
def test_a_reward_closes_unless_it_names_a_turn(body: dict[str, Any], closes: bool) -> None:
    assert wire.GiveReward.model_validate(body).closes is closes


@given(st.lists(st.integers(min_value=0, max_value=1000), min_size=6, max_size=6))
def test_a_ledger_balances_only_where_the_sums_are_equal(terms: list[int]) -> None:
    live, leased, acknowledged, dumped, imported, extra = terms
    created = live + leased + acknowledged + dumped + extra - imported
    ledger = wire.Ledger(
        created=created,
        imported=imported,
        live=live,
        leased=leased,
        acknowledged=acknowledged,
        dumped=dumped,
        discarded={"deleted": extra},
    )
    assert ledger.balanced
    assert not ledger.model_copy(update={"live": live + 1}).balanced


def test_a_reply_of_a_newer_proxy_is_read() -> None:
    sums = {"created": 1, "live": 1, "something_new": 5}
    audit = wire.Audit.model_validate({"turns": sums, "sessions": sums, "balanced": True, "more": {}})
    assert audit.turns.balanced


def test_error_codes_are_distinct_and_at_hand_in_wire() -> None:
    codes = {name: value for name, value in vars(errors).items() if name.isupper()}
    assert len(set(codes.values())) == len(codes)
    assert all(getattr(wire, name) == value for name, value in codes.items())
