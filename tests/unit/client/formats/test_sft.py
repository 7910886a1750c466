"""Examples of supervised fine-tuning: an example a row, of what is trained."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from tests.unit.client.formats.drawn import SIX, batches, rollout, same

from rolloutfleet.fleet.trajectories import Row, Trajectory
from rolloutfleet.formats import by_session, rows_of, sft
from rolloutfleet.formats.rollouts import trained_tokens


@dataclass(frozen=True)
class Telling(Row):
    """A row that an export brought with its conversation."""

    messages: Any = None
    tools: Any = None


@given(batches())
def test_rows_have_each_row_to_the_bit(drawn: list[list[Trajectory]]) -> None:
    flat = [trajectory for each in reversed(drawn) for trajectory in each]
    rows = [row for each in by_session(flat) for row in rows_of(each) if trained_tokens(row)]
    made = sft.rows(flat)
    assert len(made) == len(rows)
    for example, row in zip(made, rows, strict=True):
        assert set(example) == {"input_ids", "assistant_masks"}
        assert same(example["input_ids"], row, "input_ids")
        assert same(example["assistant_masks"], row, "loss_mask")
        assert {type(each) for each in example["input_ids"]} == {int}
        assert 1 in example["assistant_masks"]


def test_rows_leave_out_what_trains_nothing() -> None:
    assert sft.rows(rollout(SIX, outcome="failed", reward=None)) == []


def test_rows_carry_messages_and_tools_where_the_export_did() -> None:
    (one,) = rollout(SIX[:1])
    (row,) = one.rows
    said = [{"role": "user", "content": "2 + 2?"}]
    told = Telling(row.turn_ids, row.reward, row.tensors, messages=said, tools=[])
    (example,) = sft.rows([replace(one, rows=(told,))])
    assert (example["messages"], example["tools"]) == (said, [])
