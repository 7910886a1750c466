"""What a training loop does with a fleet of two real proxies: sessions, rewards, exports, blocking and not."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator

import numpy as np
import openai
import pytest
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.agents import talk_all, talked
from tests.integration.client.fleet.by_turns import sessions_by_turns
from tests.integration.client.fleet.leases import until_a_lease_lapses
from tests.waiting import PATIENCE

from rolloutfleet.fleet import AsyncFleet, BadArgument, Conflict, Fleet, Gone, LeaseLost, NotKnown, Whereabouts


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Of its own: what other tests left would be exported here."""
    with running_fleet(tmp_path_factory.mktemp("loop"), proxies=2) as running:
        yield running


def test_a_batch_from_sessions_to_acknowledgement(fleet: Fleet) -> None:
    before = fleet.audit()
    group_ids, session_ids = [], []
    for task in range(6):
        with fleet.start_group(2, f"task-{task}", metadata={"number": task}) as group:
            talked(group, turns=2)
            for place, session in enumerate(group):
                session.reward(float(place))
        group_ids.append(group.group_id)
        session_ids += [session.session_id for session in group]
    with fleet.export(session_ids=session_ids) as export:
        batch = list(export)
    assert {each.group_id for each in batch} == set(group_ids)
    assert sorted(each.reward or 0.0 for each in batch) == [0.0] * 6 + [1.0] * 6
    for each in batch:
        assert each.metadata["number"] == int((each.task_id or "")[5:])
        row = each.rows[-1]
        mask, versions, turn_ids = (np.asarray(row.tensors[name]) for name in ("loss_mask", "versions", "turn_ids"))
        assert len(each.turns) == 2
        assert set(turn_ids[mask == 1].tolist()) == {0, 1}
        assert (versions[mask == 1] >= 0).all()
        assert each.oldest_version == versions[mask == 1].min()
    after = fleet.audit()
    assert after.turns.acknowledged - before.turns.acknowledged == 24
    assert after.turns.leased <= before.turns.leased  # what others left leased may lapse meanwhile
    assert after.balanced


async def test_an_export_of_a_group_that_comes_in_parts_ends_with_the_last(where: Whereabouts) -> None:
    async with AsyncFleet(where, progress=False) as fleet:
        group = await fleet.start_group(2)
        await talk_all(group)
        first, second = group
        await first.close()
        async with fleet.export(group_id=group.group_id, wait=True, timeout=PATIENCE) as export:
            found = [(await anext(export)).session_id]
            await second.close()
            found += [each.session_id async for each in export]
            assert export.statuses == dict.fromkeys(found, "leased")
        assert found == [first.session_id, second.session_id]


async def test_the_same_for_asyncio(where: Whereabouts) -> None:
    async with AsyncFleet(where, progress=False) as fleet:
        async with await fleet.start_group(2, "task") as group:
            await talk_all(group)
            for session in group:
                await session.reward(0.5)
        async with fleet.export(group_id=group.group_id) as export:
            batch = [trajectory async for trajectory in export]
        assert [each.reward for each in batch] == [0.5, 0.5]
        assert set(export.statuses.values()) == {"leased"}
        async with fleet.export(group_id=group.group_id) as again:
            assert [trajectory async for trajectory in again] == []
        assert set(again.statuses.values()) == {"gone"}


def test_a_block_that_fails_gives_everything_back_and_the_same_comes_again(fleet: Fleet) -> None:
    with fleet.start_group(3) as group:
        talked(group)
    with pytest.raises(RuntimeError, match="of the trainer"), fleet.export(group_id=group.group_id) as export:
        first = [each.trajectory_id for each in export]
        raise RuntimeError("of the trainer")
    with fleet.export(group_id=group.group_id) as export:
        assert [each.trajectory_id for each in export] == first
    assert len(first) == 3


def test_what_is_left_in_the_iterator_is_given_back(fleet: Fleet) -> None:
    groups = [fleet.start_group(1) for _ in range(4)]
    for group in groups:
        with group:
            talked(group)
    sessions = [session for group in groups for session in group]
    with fleet.export(session_ids=sessions) as export:
        taken = next(export)
    with fleet.export(session_ids=sessions) as rest:
        names = {each.trajectory_id for each in rest}
    assert len(names) == 3
    assert taken.trajectory_id not in names


def test_what_is_acknowledged_early_stays_so_when_the_block_fails(fleet: Fleet) -> None:
    with fleet.start_group(2) as group:
        talked(group)
    with pytest.raises(RuntimeError), fleet.export(group_id=group.group_id) as export:
        first, second = export
        export.acknowledge(first)
        raise RuntimeError
    with fleet.export(group_id=group.group_id) as export:
        assert [each.trajectory_id for each in export] == [second.trajectory_id]


def test_kept_leases_are_acknowledged_by_another_fleet_object(fleet: Fleet, where: Whereabouts) -> None:
    with fleet.start_group(2) as group:
        talked(group)
    with fleet.export(group_id=group.group_id, on_exit="keep") as export:
        first, second = export
    with Fleet(where) as other:
        other.renew([first])
        other.acknowledge([first])
        other.release([second])
        with other.export(group_id=group.group_id) as export:
            assert [each.trajectory_id for each in export] == [second.trajectory_id]


def test_an_acknowledgement_names_what_another_trainer_has_by_now_and_counts_the_rest(
    fleet: Fleet, where: Whereabouts
) -> None:
    with fleet.start_group(2) as together, fleet.start_group(1) as alone:
        talked([*together, *alone])
    with fleet.export(group_id=together.group_id, on_exit="keep") as export, Fleet(where) as other:
        late, sibling = export
        other.release([late, sibling])
        with other.export(session_ids=[late.session_id]) as again:
            assert [each.trajectory_id for each in again] == [late.trajectory_id]
    with fleet.export(group_id=alone.group_id, on_exit="keep") as export:
        given = [late, sibling, *export]
    before = fleet.counts.acknowledged
    with pytest.raises(LeaseLost, match=r"^1 trajectory was leased again.*: Leased again since lease") as raised:
        fleet.acknowledge(given)
    assert raised.value.trajectory_ids == [late.trajectory_id]
    assert fleet.counts.acknowledged == before + 2
    with fleet.export(session_ids=[sibling.session_id, *alone]) as export:
        assert list(export) == []


async def test_what_is_acknowledged_and_comes_again_is_not_handed_out(where: Whereabouts) -> None:
    """The lease was over before its owner heard of the acknowledgement: it offers the same again."""
    async with AsyncFleet(where, progress=False) as fleet, AsyncFleet(where, progress=False) as other:
        async with await fleet.start_group(3) as group:
            await talk_all(group)
        async with fleet.export(group_id=group.group_id, on_exit="keep") as export:
            first, second, third = [trajectory async for trajectory in export]

        async def never() -> None:
            await asyncio.Event().wait()

        trained = frozenset((first.trajectory_id, third.trajectory_id))
        fleet._proxies.outbox.add("an acknowledgement", never, trajectory_ids=trained)
        await other.release([first, second, third])
        async with fleet.export(group_id=group.group_id) as export:
            assert [each.trajectory_id async for each in export] == [second.trajectory_id]
        async with other.export(group_id=group.group_id) as export:
            assert [trajectory async for trajectory in export] == []
        assert set(export.statuses.values()) == {"gone"}


@pytest.mark.usefixtures("nothing_ready")
async def test_what_is_given_back_under_an_export_comes_once_and_is_held_by_its_new_lease(where: Whereabouts) -> None:
    """Or it ran out, as for a trainer that was suspended: the next page brings the same again."""
    async with AsyncFleet(where, progress=False) as fleet, AsyncFleet(where, progress=False) as other:
        sessions = await sessions_by_turns(fleet, 8)
        await talk_all(sessions)
        for session in sessions:
            await session.close()
        async with fleet.export(page=1) as export:
            first = await anext(export)
            await other.release([first])
            taken = [first, *[each async for each in export]]
            held = {name: lease for lease, names in export.leases.items() for name in names}
            assert held.keys() == {each.trajectory_id for each in taken}
            assert held[first.trajectory_id] != first.lease_id
            await export.acknowledge([first, first])
        assert Counter(each.session_id for each in taken) == Counter(session.session_id for session in sessions)
        assert (await fleet.audit()).turns.leased == 0
        async with other.export() as export:
            assert [each async for each in export] == []


def test_shards_instead_of_tensors(fleet: Fleet) -> None:
    with fleet.start_session() as session:
        talked([session])
    with fleet.export(session_ids=[session], as_="shards") as export:
        (trajectory,) = export
    ids = trajectory.rows[0].tensors["input_ids"]
    assert trajectory.tokens == ids.shape[0] > 0
    assert ids.dtype == "int64"
    with fleet.remote_tensors(framework="numpy") as tensors:
        fetched = tensors.localize(dict(trajectory.rows[0].tensors))
    assert fetched["input_ids"].shape == ids.shape
    assert set(fetched["turn_ids"].tolist()) == {-1, 0}


def test_a_lease_is_renewed_while_the_trainer_works(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rolloutfleet.fleet.leases.RENEWALS", 12)  # on a machine that stands still at times
    with fleet.start_session() as session:
        talked([session])
    with fleet.export(session_ids=[session], lease_seconds=6) as export:
        (trajectory,) = export
        until_a_lease_lapses(fleet, seconds=6)
        with fleet.export(session_ids=[session]) as again:
            assert list(again) == []
        assert again.statuses == {trajectory.session_id: "leased_elsewhere"}


def test_waiting_for_named_sessions(fleet: Fleet) -> None:
    sessions = [fleet.start_session() for _ in range(3)]
    talked(sessions)
    with fleet.export(session_ids=sessions) as export:
        assert list(export) == []
    assert set(export.statuses.values()) == {"not_ready"}
    sessions[0].close()
    with fleet.export(session_ids=sessions, wait=True, timeout=PATIENCE) as export:
        first = next(export)
        for session in sessions[1:]:
            session.close()
        rest = list(export)
    assert {each.session_id for each in (first, *rest)} == {session.session_id for session in sessions}


@pytest.mark.usefixtures("nothing_ready")
def test_a_wait_with_a_timeout_says_how_far_it_came(fleet: Fleet) -> None:
    said = r"0 of 3 trajectories came within 0\.2 s"
    with pytest.raises(TimeoutError, match=said), fleet.export(count=3, timeout=0.2) as export:
        next(export)


def test_a_status_for_each_session(fleet: Fleet) -> None:
    open_one, deleted = fleet.start_session(), fleet.start_session()
    deleted.delete()
    deleted.delete()
    never = open_one.session_id[:-1] + ("1" if open_one.session_id.endswith("0") else "0")
    found = fleet.statuses([open_one, deleted, never])
    assert getattr(found[open_one.session_id], "state", None) == "open"
    assert isinstance(found[deleted.session_id], Gone)
    assert isinstance(found[never], NotKnown)
    open_one.touch()
    open_one.delete()


def test_sessions_are_ended_when_their_block_fails(fleet: Fleet) -> None:
    with pytest.raises(KeyError), fleet.start_session() as closed:
        raise KeyError
    with pytest.raises(KeyError), fleet.start_session(on_error="delete") as deleted:
        talked([deleted])
        raise KeyError
    for session, code in ((closed, "session_closed"), (deleted, "session_deleted")):
        with pytest.raises(Gone) as error:
            session.status()
        assert error.value.code == code


def test_a_block_says_how_its_session_ended(fleet: Fleet) -> None:
    blocks: dict[str, BaseException | None] = {
        "completed": None,
        "failed": KeyError("sandbox"),
        "aborted": KeyboardInterrupt(),
    }
    for outcome, error in blocks.items():
        with contextlib.suppress(KeyError, KeyboardInterrupt), fleet.start_session() as session:
            talked([session])
            if error is not None:
                raise error
        with fleet.export(session_ids=[session]) as export:
            [trajectory] = export
        assert trajectory.outcome == ("truncated" if error is None else outcome), "its last turn was cut at 8 tokens"
        assert trajectory.outcome_reason == {"failed": "KeyError: 'sandbox'", "completed": "length"}.get(
            outcome, "KeyboardInterrupt"
        )
        assert bool(trajectory.rows[0].tensors["loss_mask"].any()) == (error is None)  # type: ignore[union-attr]


def test_a_limit_that_ends_a_session_truncates_it_whatever_the_agent_makes_of_it(fleet: Fleet) -> None:
    for handled in (True, False):
        handling = contextlib.suppress(openai.BadRequestError) if handled else contextlib.nullcontext()
        with contextlib.suppress(openai.BadRequestError), fleet.start_session(max_turns=1) as session, handling:
            talked([session], turns=2)
        with fleet.export(session_ids=[session]) as export:
            [trajectory] = export
        assert (trajectory.outcome, trajectory.outcome_reason) == ("truncated", "turn_limit")


def test_an_outcome_that_was_said_in_the_block_stands_whatever_ends_it(fleet: Fleet) -> None:
    with contextlib.suppress(KeyError), fleet.start_group(2) as group:
        talked(group)
        group.sessions[0].close(outcome="aborted", reason="the sandbox died")
        raise KeyError
    first, second = (session.status() for session in group)
    assert (first.outcome, first.outcome_reason) == ("aborted", "the sandbox died")
    assert (second.outcome, second.outcome_reason) == ("failed", "KeyError")
    assert [each.session_id for each in fleet.sessions(outcome="failed", group_id=group.group_id)] == [
        second.session_id
    ]
    with fleet.export(group_id=group.group_id, train=["failed", "aborted"], on_exit="keep") as export:
        kept = list(export)
    assert all(each.rows[0].tensors["loss_mask"].any() for each in kept)  # type: ignore[union-attr]
    with pytest.raises(Conflict) as frozen:
        fleet.close_session(group.sessions[1], outcome="completed")
    assert (frozen.value.code, frozen.value.status) == ("outcome_frozen", 409)
    fleet.acknowledge(kept)


def test_errors_are_typed_and_carry_the_code(fleet: Fleet) -> None:
    with fleet.start_session() as session:
        with pytest.raises(Exception, match="no_turn"):
            session.reward(1.0)
        talked([session])
        session.reward(1.0)
        with fleet.export(session_ids=[session]) as export:
            assert len(list(export)) == 1
        with pytest.raises(Conflict) as error:
            session.reward(2.0)
    assert (error.value.code, error.value.status) == ("reward_frozen", 409)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("group_size", lambda fleet: fleet.start_group(0)),
        ("stale_after", lambda fleet: fleet.start_session(stale_after=-1.0)),
        ("limits.turns", lambda fleet: fleet.start_session(max_turns=0)),
        ("sampling.defaults.top_k", lambda fleet: fleet.start_session(sampling={"defaults": {"top_k": 0}})),
        ("sampling", lambda fleet: fleet.start_session(sampling=1.0)),
        ("agent_may[0]", lambda fleet: fleet.start_session(agent_may=["fly"])),
        ("on_error", lambda fleet: fleet.start_session(on_error="ignore")),
        ("reward", lambda fleet: fleet.reward("s0-1", float("nan"))),
        ("session", lambda fleet: fleet.reward("../x", 1.0)),
        ("count", lambda fleet: fleet.export(count=0)),
        ("count", lambda fleet: fleet.export(count=1, group_id="g0-1")),
        ("discount", lambda fleet: fleet.export(discount=1.5)),
        ("style", lambda fleet: fleet.export(style="other")),
        ("train[0]", lambda fleet: fleet.export(train=["other"])),
        ("outcome", lambda fleet: fleet.close_session("s0-1", outcome="other")),
        ("reason", lambda fleet: fleet.close_session("s0-1", reason="x" * 513)),
        ("lease_seconds", lambda fleet: fleet.export(lease_seconds=0)),
        ("as_", lambda fleet: fleet.export(as_="lists")),
        ("timeout", lambda fleet: fleet.export(timeout=-1)),
        ("version", lambda fleet: fleet.set_version(True)),
        ("version", lambda fleet: fleet.weight_update(-1)),
        ("mode", lambda fleet: fleet.pause("gently")),
        ("newer", lambda fleet: fleet.recover(1, newer="other")),
        ("open", lambda fleet: fleet.recover(1, open="other")),
        ("confirm", lambda fleet: fleet.recover(1, confirm=1)),
        ("state", lambda fleet: fleet.sessions(state="other")),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_asked(fleet: Fleet, argument: str, call: object) -> None:
    before = fleet.audit()
    with pytest.raises(BadArgument) as error:
        call(fleet)  # type: ignore[operator]
    assert error.value.argument == argument, str(error.value)
    assert str(error.value).startswith(f"{argument}: ")
    assert fleet.audit() == before
