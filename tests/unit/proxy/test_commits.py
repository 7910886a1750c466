"""Those who follow commits are told each once, or that they missed some; nobody who commits waits for them."""

import asyncio

import pytest

from rolloutfleet_proxy.domain.errors import Draining, TooManyViewers
from rolloutfleet_proxy.services.commits import AT_ONCE, READERS, REMEMBERED, Commits


def turn(number: int) -> str:
    return f"turn-{number}"


def committed(commits: Commits, numbers: range) -> None:
    for number in numbers:
        commits.add("s", turn(number), None)


def test_each_is_told_once_in_order() -> None:
    commits = Commits()
    with commits.reader(None, holding=False) as reader:
        assert reader.take() == []
        committed(commits, range(AT_ONCE + 3))
        found = [*(reader.take() or []), *(reader.take() or [])]
        assert [each.turn_id for each in found] == [turn(number) for number in range(AT_ONCE + 3)]
        assert [each.seq for each in found] == list(range(1, AT_ONCE + 4))
        assert reader.take() == []


def test_who_has_seen_a_turn_is_told_what_came_behind_it_also_before_the_start() -> None:
    commits = Commits([("s", turn(number), None) for number in range(5)])
    committed(commits, range(5, 7))
    with commits.reader(turn(3), holding=False) as reader:
        assert [each.turn_id for each in reader.take() or []] == [turn(4), turn(5), turn(6)]


@pytest.mark.parametrize("after", ["turn-unknown", turn(0)])
def test_who_can_not_be_told_all_is_told_so_and_goes_on_from_there(after: str) -> None:
    commits = Commits()
    committed(commits, range(REMEMBERED + 10))
    with commits.reader(after, holding=False) as reader:
        assert reader.take() is None
        assert reader.last == turn(REMEMBERED + 9)
        committed(commits, range(REMEMBERED + 10, REMEMBERED + 11))
        assert [each.turn_id for each in reader.take() or []] == [turn(REMEMBERED + 10)]


def test_who_came_before_the_first_turn_misses_none() -> None:
    commits = Commits()
    with commits.reader(None, holding=False) as reader:
        seen = reader.last
    after_a_restart = Commits([("s", turn(0), None)])
    with after_a_restart.reader(seen, holding=False) as reader:
        assert [each.turn_id for each in reader.take() or []] == [turn(0)]


def test_one_who_reads_slowly_misses_some_and_takes_no_memory() -> None:
    commits = Commits()
    with commits.reader(None, holding=False) as slow:
        committed(commits, range(10 * REMEMBERED))
        assert len(commits._ring) == REMEMBERED
        assert slow.take() is None and slow.take() == []


def test_there_are_so_many_places_and_who_leaves_gives_his_back() -> None:
    commits = Commits()
    readers = [commits.reader(None, holding=False) for _ in range(READERS)]
    for each in readers:
        each.__enter__()
    with pytest.raises(TooManyViewers), commits.reader(None, holding=False):
        pass
    readers[0].__exit__(None, None, None)
    with commits.reader(None, holding=False):
        pass


def test_a_drain_ends_readers_at_once_and_lets_none_in() -> None:
    async def follow() -> bool:
        commits = Commits()
        with commits.reader(None, holding=False) as reader:
            waiting = asyncio.create_task(reader.wait())
            await asyncio.sleep(0)
            commits.end_readers()
            await waiting
            return reader.ended

    assert asyncio.run(follow())
    with pytest.raises(Draining), Commits().reader(None, holding=True):
        pass
