"""What `rolloutfleet top` makes of two looks at a fleet. (In a terminal: test_cli_with_a_fleet.py.)"""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rolloutfleet.cli.top.screen import Display, shown
from rolloutfleet.viewing.figures import ORDERS, PAUSED, TOO_LONG, FleetFigures, ProxyFigures, Sample, figures, ordered
from rolloutfleet.wire import Proxy, Stats

GIB = 2**30


def stats(ordinal: int = 0, **said: Any) -> Stats:
    known = {
        "ordinal": ordinal,
        "store_id": "s",
        "pid": 1,
        "run": 0,
        "version": 3,
        "epoch": 0,
        "paused": False,
        "sessions": {"open": 2, "ended": 1},
        "in_flight": 1,
        **{f"{kind}_bytes": GIB for kind in ("rss", "rss_anon", "rss_file", "vms")},
    }
    return Stats.model_validate({**known, **said})


def look(at: float, *said: Stats, proxies: int = 1) -> Sample:
    there = [Proxy(ordinal=ordinal, url=f"http://p{ordinal}", state="ready") for ordinal in range(proxies)]
    return Sample(at, there, {each.ordinal: each for each in said}, {})


def drawn(fleet: FleetFigures, *, width: int = 130, **options: Any) -> str:
    """With the codes of colours, as a terminal gets it."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    screen.print(shown(fleet, Display("proxy", 1.0), width=width, **options))
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_tokens_a_second_are_those_between_the_two_looks() -> None:
    before, now = (stats(tokens={"completion": sampled, "prompt": prompt}) for sampled, prompt in ((10, 0), (70, 300)))
    [row] = figures(look(5, before), look(7, now)).rows
    assert (row.sampled, row.prompt) == (30, 150)


@pytest.mark.parametrize("before", [(), (stats(pid=7, tokens={"completion": 1000}),)], ids=["new", "restarted"])
def test_no_rate_is_told_of_a_proxy_whose_counts_began_anew(before: tuple[Stats, ...]) -> None:
    fleet = figures(look(5, *before), look(7, stats(tokens={"completion": 10})))
    assert fleet.rows[0].sampled is None and fleet.total(lambda row: row.sampled) is None
    assert "- sampled" in drawn(fleet)


def test_sums_are_over_the_proxies_that_answer_and_the_rest_is_named() -> None:
    now = Sample(1, look(1, proxies=2).proxies, {1: stats(1)}, {0: "it is away"})
    fleet = figures(now, now)
    assert (fleet.total(lambda row: row.open), fleet.rows[0].open) == (2, None)
    assert "proxy 0: it is away" in drawn(fleet)
    assert fleet.as_json()["failed"] == {"0": "it is away"}


def test_a_pause_is_told_as_of_the_proxy_that_is_worst_off() -> None:
    said = [stats(0), stats(1, paused=True), stats(2, paused=True, past_max_hold=True)]
    paused = [figures(look(0), look(1, *said[:most], proxies=most)).paused for most in (1, 2, 3)]
    assert paused == ["", PAUSED, TOO_LONG]


@given(
    st.lists(
        st.builds(ProxyFigures, proxy=st.integers(0, 9), state=st.just("ready"), open=st.none() | st.integers(0, 3))
    )
)
def test_every_order_has_all_rows_and_backwards_is_the_other_way(rows: list[ProxyFigures]) -> None:
    for by in ORDERS:
        forwards = ordered(rows, by)
        assert sorted(map(id, forwards)) == sorted(map(id, rows))
        assert [ORDERS[by](row) for row in reversed(forwards)] == [
            ORDERS[by](row) for row in ordered(rows, by, backwards=True)
        ]


def test_keys_go_through_all_orders_and_turn_them_round() -> None:
    view = Display("proxy", 1.0)
    seen = [view.sort, *((view := view.after("s")).sort for _ in ORDERS)]
    assert seen == [*ORDERS, "proxy"]
    assert view.after("r").backwards and view.after("x") == view


@pytest.mark.parametrize(("rss", "colour"), [(0.5, 32), (0.9, 33), (1.1, 31)], ids=["within", "nearly", "over"])
def test_memory_is_shown_against_the_budget(rss: float, colour: int) -> None:
    now = look(1, stats(rss_bytes=int(rss * GIB), rss_budget_bytes=GIB))
    screen = drawn(figures(now, now))
    assert f"\x1b[{colour}m█" in screen and "of 1.0 GiB" in screen


def test_forks_beyond_the_share_that_is_worth_a_warning_are_yellow() -> None:
    few, many = (
        stats(follow_ups={"extending": 100 - forks, "branch": forks}, forks={"content": 10}) for forks in (2, 10)
    )
    screens = [drawn(figures(look(0), look(1, each))) for each in (few, many)]
    assert ["\x1b[33m10 of 100 follow-up turns (10.0%): content 10" in screen for screen in screens] == [False, True]
    assert "2 of 100 follow-up turns (2.0%): content 10" in screens[0]
    said = figures(look(0), look(1, many)).as_json()
    assert all(each["forked_by"] == {"content": 10} for each in (said["fleet"], *said["proxies"]))
    assert "branches" not in said["fleet"].keys() | said["proxies"][0].keys()


def test_nothing_that_is_said_reaches_the_terminal_as_an_order_to_it() -> None:
    now = Sample(1, look(1).proxies, {0: stats(refused={"\x1b]0;x\x07": 1}, branches={"\x9b2J": 1})}, {1: "\x1b[2J"})
    screen = drawn(figures(now, now), trouble="\x1b[3J")
    assert [order for order in ("\x1b]", "\x9b", "\x07", "\x1b[2J", "\x1b[3J") if order in screen] == []


@pytest.mark.parametrize("width", [60, 80, 110, 130])
def test_no_line_is_wider_than_the_screen_nor_broken(width: int) -> None:
    now = look(1, stats(rss_budget_bytes=GIB, refused=dict.fromkeys((f"reason_{n}" for n in range(20)), 1)))
    plain = Console(file=io.StringIO(), width=width)
    plain.print(shown(figures(now, now), Display("proxy", 1.0), width=width))
    assert isinstance(plain.file, io.StringIO)
    lines = plain.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[:2] for line in lines[-2:]] == [["proxy", "state"], ["0", "ready"]], "each proxy has one line"
