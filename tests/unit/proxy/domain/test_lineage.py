"""Which lineages a session knows, and what is kept of them."""

import pytest

from rolloutfleet_proxy.domain import lineage
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage, Lineages
from rolloutfleet_proxy.domain.matching import Matching

AGENT = Lineage("a1", "subagent", "main")


@pytest.mark.parametrize("known", [MAIN, AGENT, Lineage("t", "compaction", "t"), Lineage(None, "other")])
def test_a_rows_digests_bring_it_back(known: Lineage) -> None:
    assert Matching.decode(Matching("2", lineage=known).encode()).lineage == known


def test_rows_of_the_main_loop_are_as_they_were_before_there_were_lineages() -> None:
    assert b"lineage" not in Matching("2").encode()
    assert Matching.decode(b'{"rules":"2","reasonings":[],"call_ids":[],"branch_reason":null}').lineage == MAIN
    assert Matching.decode(b'[[1, "aa"]]').lineage == MAIN


def test_labels_tell_lineages_apart() -> None:
    others = [AGENT, Lineage("a2", "subagent", "main"), Lineage("a1", "compaction", "main"), Lineage(None, "subagent")]
    assert len({each.label for each in [MAIN, *others]}) == 5


def test_one_lineage_is_kept_once_for_all_its_turns() -> None:
    known = Lineages()
    first = known.take_in(Lineage("a1", "subagent", "main"))
    assert known.take_in(Lineage("a1", "subagent", "main")) is first
    assert known.known(Lineage("a1", "subagent", "main")) is first
    assert known.take_in(Lineage("main", "main")) is MAIN
    assert len(known) == 2


def test_beyond_the_bound_the_kind_alone_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "LINEAGES", 3)
    known = Lineages()
    names = [known.take_in(Lineage(str(number), "subagent", "main")).id for number in range(5)]
    assert names == ["0", "1", None, None, None]
    assert known.take_in(Lineage("0", "subagent", "main")).id == "0", "one that is known already stays"
    assert known.take_in(Lineage("7", "compaction", "0")) == Lineage(None, "compaction")
    assert len(known) == 3
