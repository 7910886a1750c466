"""What a fleet object shows of a fleet, whoever works with it: figures, lists of all proxies, one lease as a file."""

import asyncio
import io
import json
from pathlib import Path

import pytest
from tests.commands import suspended
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.agents import talk_all, talked
from tests.integration.client.fleet.by_turns import starts_by_turns
from tests.integration.client.fleet.conftest import whereabouts
from tests.waiting import PATIENCE

from rolloutfleet.fleet import (
    AsyncFleet,
    BadArgument,
    Fleet,
    NotEverywhere,
    NotKnown,
    Whereabouts,
    async_fleet,
    read_export,
)
from rolloutfleet.fleet.leases import Format
from rolloutfleet.fleet.proxies import Proxies
from rolloutfleet.wire import JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE


def test_the_figures_of_all_proxies_come_in_one_answer(where: Whereabouts) -> None:
    with Fleet(where) as fleet:
        stats = fleet.stats()
        assert [each.ordinal for each in stats.proxies] == [0, 1]
        assert (stats.ordinals, stats.failed) == ([0, 1], [])


def test_the_newest_sessions_of_all_proxies_come_first_however_long_the_pages_are(
    where: Whereabouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolloutfleet.fleet.sessions.PAGE", 2)
    with Fleet(where) as fleet:
        with starts_by_turns():
            made = [fleet.start_session("ordered").session_id for _ in range(9)]
        listed = [each.session_id for each in fleet.sessions(task_id="ordered", newest=True)]
        assert listed == made[::-1]
        assert [each.session_id for each in fleet.sessions(task_id="ordered", newest=True, limit=3)] == listed[:3]
        assert len(fleet.sessions(task_id="ordered", limit=4)) == 4
        with pytest.raises(BadArgument, match="limit"):
            fleet.sessions(limit=0)
        with pytest.raises(BadArgument, match="max_turns must not be less than min_turns"):
            fleet.sessions(min_turns=2, max_turns=1)


def test_a_list_that_a_proxy_is_missing_from_says_so_and_has_the_others(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running_fleet(tmp_path_factory.mktemp("missing"), proxies=2) as running, Fleet(whereabouts(running)) as fleet:
        made = {fleet.start_session().session_id for _ in range(6)}
        running.proxies[1].kill()
        with pytest.raises(NotEverywhere) as error:
            fleet.sessions()
        assert list(error.value.failed) == [1]
        assert {each.session_id for each in error.value.found} == {name for name in made if name.startswith("s0")}
        assert [each.ordinal for each in fleet.stats().failed] == [1]


@pytest.mark.parametrize("form", ["json", "safetensors"])
def test_one_lease_comes_as_a_file_and_is_ended_by_its_id(where: Whereabouts, form: Format) -> None:
    media_type = JSON_MEDIA_TYPE if form == "json" else TENSORS_MEDIA_TYPE
    with Fleet(where) as fleet:
        with fleet.start_group(2) as group:
            talked(group)
        file = fleet.export_file(group_id=group.group_id, form=form)
        assert file.lease_id is not None
        names = {each.trajectory_id for each in read_export(file.content, media_type=media_type).trajectories}
        assert len(names) == 2
        (first, *_) = names
        assert fleet.end_lease(file.lease_id, acknowledge=True, trajectory_ids=[first]).ordinals
        fleet.end_lease(file.lease_id, acknowledge=False)
        again = fleet.export_file(group_id=group.group_id)
        assert again.lease_id is not None
        assert {each["trajectory_id"] for each in json.loads(again.content)["trajectories"]} == names - {first}
        fleet.end_lease(again.lease_id, acknowledge=True)
        assert fleet.export_file(group_id=group.group_id).lease_id is None
        with pytest.raises(NotKnown):
            fleet.end_lease("l0-nothing", acknowledge=False)


async def test_whatever_proxy_has_something_gives_it(where: Whereabouts) -> None:
    async with AsyncFleet(where) as fleet:
        sessions = [await fleet.start_session() for _ in range(6)]
        await talk_all(sessions)
        wanted = {await session.close() for session in sessions}
        found: set[str] = set()
        while not wanted <= found:
            file = await fleet.export_file(max_trajectories=2)
            assert file.lease_id is not None
            found |= {each["trajectory_id"] for each in json.loads(file.content)["trajectories"]}
            await fleet.end_lease(file.lease_id, acknowledge=True)


def dumped(running: Running) -> list[str]:
    """Have all proxies dump what they hold; the names of the files."""
    for proxy in running.proxies:
        with proxy.admin() as admin:
            assert admin.post("/drain", json={"id": "d"}).is_success
            assert admin.post("/dumps").is_success
            assert admin.delete("/drain", params={"id": "d"}).is_success
    folders = [Path(proxy.settings["state_dir"]) / "dumps" for proxy in running.proxies]
    return sorted(file.name for folder in folders for file in folder.glob("*"))


def test_dumps_of_all_proxies_are_listed_read_and_taken_in_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_fleet(tmp_path_factory.mktemp("dumps"), proxies=2) as running, Fleet(whereabouts(running)) as fleet:
        sessions = [fleet.start_session() for _ in range(4)]
        talked(sessions)
        names = dumped(running)
        listed = fleet.dumps(state="ready")
        assert sorted(each.name for each in listed) == names and len(names) == 4
        for each in listed:
            into = io.BytesIO()
            fleet.fetch_dump(each.name, into)
            assert len(into.getvalue()) == each.bytes
            (imported,) = fleet.import_dumps([each.name], ordinal=each.ordinal)
            assert imported.session_id == each.session_id
        assert fleet.dumps(state="ready") == []
        unknown = io.BytesIO()
        with pytest.raises(NotKnown):
            fleet.fetch_dump("s0-0123456789ab-0011223344556677-active.json", unknown)
        assert unknown.getvalue() == b""


async def test_figures_are_asked_of_another_proxy_where_one_falls_silent_over_them(
    pair: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(self: Proxies, ordinal: int) -> None:
        """A probe from before it fell silent."""

    monkeypatch.setattr(async_fleet, "STATS_TIMEOUT", 4.0)
    monkeypatch.setattr(Proxies, "_probe", answered)
    async with AsyncFleet(whereabouts(pair)) as fleet:
        await fleet.proxies()
        silent = pair.proxies[1].process
        assert silent is not None
        with suspended(silent.pid):
            async with asyncio.timeout(PATIENCE):
                # Which proxy is asked first is drawn.
                found = await asyncio.gather(*(fleet.stats() for _ in range(10)))
    assert [[each.ordinal for each in stats.failed] for stats in found] == [[1]] * 10
