"""Exports that tell a run's lineages apart: which of them are trained, and whose reward their rows get."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.wire import AskExport, ExportStyle, LineageKind
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.trajectory import ExportTurn
from rolloutfleet_proxy.exports.rows import Row, credited, return_of, rows

STYLES: tuple[ExportStyle, ...] = ("concat", "individual")
NAMES: tuple[LineageKind, ...] = ("main", "subagent", "compaction")
SUBAGENT = Lineage("a", "subagent")
COMPACTION = Lineage(None, "compaction")


def turn(number: int, parent: int | None = None, reward: float | None = None, lineage: Lineage = MAIN) -> ExportTurn:
    return ExportTurn(
        number=number,
        name=f"t{number}",
        parent=parent,
        prompt_tokens=2,
        output_tokens=1,
        reward=reward,
        finish_reason="stop",
        mixed_cache=False,
        lineage=lineage,
    )


def of(*turns: ExportTurn) -> dict[int, ExportTurn]:
    return {turn.number: turn for turn in turns}


RUN = of(
    turn(1),
    turn(2, None, None, SUBAGENT),
    turn(3, 2, None, SUBAGENT),
    turn(4, 1, 0.5),
    turn(5, None, None, COMPACTION),
    turn(6, 4, 1.0),
    turn(7, None, None),
)
"""A main loop that is rewarded twice, a sub-agent, a compaction, and what the main loop began anew with."""


def made(
    style: ExportStyle,
    *,
    turns: Mapping[int, ExportTurn] = RUN,
    context: frozenset[LineageKind] = frozenset(),
    discount: float = 0.5,
) -> list[Row]:
    return rows(turns, list(turns), style=style, discount=discount, context=context)


@pytest.mark.parametrize("style", STYLES)
def test_lineages_that_are_context_are_trained_in_no_row_and_rows_without_any_training_are_left_out(
    style: ExportStyle,
) -> None:
    context: frozenset[LineageKind] = frozenset(("subagent", "compaction"))
    found = made(style, context=context)
    assert sorted(number for row in found for number in row.trained) == [1, 4, 6, 7]
    assert all(row.trained for row in found)
    assert [row.last for row in found] == ([6, 7] if style == "concat" else [1, 4, 6, 7])


def test_a_turn_of_context_on_a_trained_row_has_no_mask() -> None:
    forked = of(turn(1, None, None, SUBAGENT), turn(2, 1))
    [row] = made("concat", turns=forked, context=frozenset(("subagent",)))
    assert row.own == (1, 2) and row.trained == {2}


def test_what_a_fork_of_context_shares_is_trained_with_what_the_main_loop_came_to() -> None:
    forked = of(turn(1), turn(2, 1, None, SUBAGENT), turn(3, 1, 1.0))
    [row] = made("concat", turns=forked, context=frozenset(("subagent",)))
    assert (row.own, row.trained, row.reward) == ((1, 3), frozenset((1, 3)), 0.5)
    ended = of(turn(1), turn(2, 1, None, SUBAGENT))
    [row] = made("concat", turns=ended, context=frozenset(("subagent",)))
    assert (row.own, row.trained) == ((1, 2), frozenset((1,))), "nothing else goes on from it"


@pytest.mark.parametrize("style", STYLES)
def test_credited_return_goes_to_rows_without_one_alone(style: ExportStyle) -> None:
    plain = {row.last: row.reward for row in made(style)}
    with_it = {row.last: row.reward for row in credited(made(style), 7.0)}
    without = {3, 5, 7} | ({2} if style == "individual" else set())
    assert {last for last in plain if plain[last] is None} == without
    assert with_it == plain | dict.fromkeys(without, 7.0)


@pytest.mark.parametrize(("style", "expected"), [("concat", 0.25 + 0.5 * 1.0), ("individual", 1.0)])
def test_the_return_of_a_turn_is_that_of_the_row_that_trains_it(style: ExportStyle, expected: float) -> None:
    turns = of(turn(1, None, 0.25), turn(2, 1, 1.0), turn(3, None, 3.0, SUBAGENT))
    assert return_of(turns, [1, 2, 3], 2, style=style, discount=0.5) == expected


def test_a_reward_of_zero_is_a_reward() -> None:
    turns = of(turn(1, None, 1.0), turn(2, None, 0.0, SUBAGENT))
    assert [row.reward for row in credited(made("concat", turns=turns), 1.0)] == [1.0, 0.0]


@given(data=st.data(), style=st.sampled_from(STYLES))
def test_every_trained_turn_is_trained_once_and_no_other(data: st.DataObject, style: ExportStyle) -> None:
    kinds = (MAIN, SUBAGENT, COMPACTION)
    turns: dict[int, ExportTurn] = {}
    for number in range(1, data.draw(st.integers(1, 12)) + 1):
        parent = data.draw(st.sampled_from([None, *turns]))
        reward = data.draw(st.sampled_from((None, 0.0, 1.0)))
        turns[number] = turn(number, parent, reward, data.draw(st.sampled_from(kinds)))
    context = data.draw(st.frozensets(st.sampled_from(NAMES)))
    found = made(style, turns=turns, context=context)
    trained = [number for row in found for number in row.trained]
    assert sorted(trained) == [number for number in turns if turns[number].lineage.kind not in context]
    everything = {row.last: row.reward for row in made(style, turns=turns)}
    assert all(row.reward == everything[row.last] for row in found), "what is context changes no return"


def test_by_default_all_are_trained_as_if_there_were_one_lineage() -> None:
    alike = {number: replace(each, lineage=MAIN) for number, each in RUN.items()}
    assert made("concat") == made("concat", turns=alike)
    assert AskExport().context == frozenset()
    assert AskExport(lineages={"subagent": "context", "main": "train"}).context == {"subagent"}


def test_what_is_not_asked_for_is_not_said() -> None:
    """A proxy of an earlier version refuses fields that it doesn't know."""
    assert "lineages" not in AskExport().model_dump(by_alias=True)
    asked = AskExport(lineages={"subagent": "context"}, credit="branch")
    assert AskExport.model_validate_json(asked.model_dump_json(by_alias=True)) == asked
