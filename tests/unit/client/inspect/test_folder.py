"""A folder is shown whatever lies in it: what is whole as `show` has it, all else named as such, nothing outside."""

import asyncio
import json
import math
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.client.dumps.samples import SESSION, turn
from tests.unit.client.inspect.sites import branched, document, site, whole, write_dump
from tests.waiting import PATIENCE

from rolloutfleet.dumps.form import DumpedShard, DumpedTurn, encode
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.inspect import indexing
from rolloutfleet.inspect.folder import FolderSource
from rolloutfleet.inspect.indexing import Found
from rolloutfleet.viewing import TOKEN_LISTS, load_texts, open_file
from rolloutfleet.wire import ShownTurn
from rolloutfleet_engine.model import model_path

HOSTILE = "<script>alert(1)</script>\"'& \x1b[31m \u202e {{ 7*7 }}"
Json = Any


async def lines(browser: Any) -> list[Json]:
    listed = await document(browser, "/data/sessions.json")
    assert listed["complete"] is True
    found: list[Json] = listed["sessions"]
    return found


async def test_a_session_of_a_file_is_listed_with_what_its_turns_come_to(tmp_path: Path) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        assert (line["session_id"], line["task_id"], line["source"]) == (SESSION, "tâche", "dump")
        assert (line["turns"], line["branches"], line["reward"], line["rewarded"]) == (3, 2, 0.0, 2)
        assert (line["output_tokens"], line["version_min"], line["version_max"]) == (704, 0, 0)
        overview = await document(browser, "/data/fleet.json")
        assert (overview["sessions"], overview["newest"]) == (1, [line])
        assert line["key"] != SESSION and len({line["key"], line["group"]}) == 2


async def test_a_kept_session_is_shown_as_such(tmp_path: Path) -> None:
    write_dump(tmp_path / f"{SESSION}-kept.json", branched(), reason="kept", trajectory=None)
    async with site(tmp_path) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        assert (line["source"], line["state"], line["reward"], line["turns"]) == ("kept", "kept", 0.0, 3)


async def test_turns_and_chunks_are_those_that_show_has(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    async with site(folder) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        tree = await document(browser, f"/data/sessions/{line['key']}/tree.json")
        (recorded,) = open_file(next(folder.iterdir()), load_texts(None))
        assert tree["branches"] == [branch.last for branch in recorded.branches]
        assert [(each["turn_id"], each["depth"]) for each in tree["turns"]] == [
            ("chatcmpl-1", 0),
            ("chatcmpl-3", 1),
            ("chatcmpl-2", 0),
        ]
        whole_turns = {each.turn_id: each for branch in recorded.branches for each in branch.read()}
        for listed in tree["turns"]:
            await same_turn(
                browser, f"/data/sessions/{line['key']}/turns/{listed['name']}", whole_turns[listed["turn_id"]]
            )


async def same_turn(browser: Any, path: str, expected: ShownTurn) -> None:
    made = await document(browser, f"{path}.json")
    assert {**made, "tokens": None} == {
        **expected.model_dump(),
        "tokens": None,
        **{name: made[name] for name in ("name", "chunks", "strip")},
    }
    joined = defaultdict[str, list[Json]](list)
    for number in range(made["chunks"]):
        chunk = await document(browser, f"{path}/tokens/{number}.json")
        assert chunk["start"] == 512 * number
        for name in TOKEN_LISTS:
            joined[name] += chunk[name]
    whole = {name: getattr(expected.tokens, name) for name in TOKEN_LISTS}
    assert {name: joined[name] for name in TOKEN_LISTS} == whole
    assert made["tokens"] == len(joined["input_ids"]) and len(made["strip"]) == min(512, expected.completion_tokens)
    assert (await browser.get(f"{path}/tokens/{made['chunks']}.json")).status_code == 404


async def test_what_is_no_file_of_turns_is_named_and_all_else_is_shown(tmp_path: Path) -> None:
    folder = whole(tmp_path)
    good = next(folder.iterdir()).read_bytes()
    (folder / "cut.json").write_bytes(good[:-200])
    (folder / "changed.json").write_bytes(good.replace(b"line", b"lime"))
    (folder / "foreign.json").write_text('{"name": "package"}')
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.parquet").write_text("PAR1")
    (folder / "unlisted.txt").write_text("nothing")
    (folder / ".hidden.json").write_bytes(good)
    os.mkfifo(folder / "pipe.json")
    (folder / "deep").mkdir()
    (folder / "deep" / "again.json").write_bytes(good)
    async with site(folder) as page, page.let_in() as browser:
        assert [line["session_id"] for line in await lines(browser)] == [SESSION, SESSION]
        found = await document(browser, "/data/fleet.json")
        assert {each["file"] for each in found["unreadable"]} == {
            "cut.json",
            "changed.json",
            "foreign.json",
            "broken.parquet",
            "pipe.json",
        }
        for each in found["unreadable"]:
            assert each["why"] and str(tmp_path) not in each["why"] and each["file"] not in each["why"]
        answer = await browser.get("/index.html")
        assert "cut.json" in answer.text and answer.status_code == 200


async def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = whole(tmp_path / "outside")
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file.json").symlink_to(next(outside.iterdir()))
    (inside / "folder").symlink_to(outside)
    async with site(inside) as page, page.let_in() as browser:
        assert await lines(browser) == []


@pytest.mark.parametrize(
    "path",
    [
        "/data/sessions/{key}/turns/..%2f..%2fx.json",
        "/data/sessions/..%2f..%2fetc/tree.json",
        "/data/sessions/%2e%2e/tree.json",
        "/data/sessions/none/tree.json",
        "/data/sessions/{key}/turns/none.json",
        "/data/sessions/{key}/turns/x1/tokens/0.json",
        "/data/sessions/{key}/turns/chatcmpl-1/tokens/99999999999999999999.json",
        "/data/sessions/{key}/turns/chatcmpl-1/tokens/" + "9" * 5000 + ".json",
        "/data/sessions/{key}/turns/chatcmpl-1/tokens/².json",
        "/data/sessions/{key}/turns/chatcmpl-1/tokens/-1.json",
        "/data/sessions/{key}/turns/chatcmpl-1/tokens/x.json",
        "/sessions/..%2fx.html",
        "/sessions/x%00.html",
        "/groups/..%2f..%2fx.html",
        "/static/..%2f__init__.py",
        "/static/../pages.py",
        "/static/%2e%2e/pages.py",
        "/static//etc/passwd",
        "/static/",
        "/proxies",
        "/http://127.0.0.1/",
    ],
)
async def test_names_that_nothing_has_are_404_whatever_they_look_like(tmp_path: Path, path: str) -> None:
    async with site(whole(tmp_path)) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        answer = await browser.get(path.format(key=line["key"]))
        assert answer.status_code == 404 and "root:" not in answer.text and "import" not in answer.text


async def test_hostile_text_is_text_wherever_it_stands(tmp_path: Path) -> None:
    hostile = {"session_id": HOSTILE, "group_id": HOSTILE, "task_id": HOSTILE}
    said = [{"role": HOSTILE, "content": HOSTILE}]
    call = {
        "role": "assistant",
        "content": HOSTILE,
        "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}],
    }
    one = turn(
        1,
        turn_id="../../" + HOSTILE,
        messages=said,
        output=call,
        note=HOSTILE,
        finish_reason=HOSTILE,
        branch_reason={"message": 0, "field": HOSTILE},
        lineage={"id": "<img src=x>", "kind": "subagent", "parent": "<img src=x>"},
    )
    write_dump(tmp_path / f"{HOSTILE.replace('/', '')}.json", [one], session=hostile, reason=HOSTILE)
    (tmp_path / "<img src=x>.json").write_text("{}")
    async with site(tmp_path) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        tree = await document(browser, f"/data/sessions/{line['key']}/tree.json")
        name = tree["turns"][0]["name"]
        made = await document(browser, f"/data/sessions/{line['key']}/turns/{name}.json")
        assert made["messages"][0]["message"] == said[0] and made["note"] == HOSTILE
        for path in ("index", "sessions", f"sessions/{line['key']}", f"groups/{line['group']}"):
            answer = await browser.get(f"/{path}.html")
            assert answer.status_code == 200, path
            # Modules find turns by their ids, which nobody sees.
            seen = re.sub(r' data-turn="[^"]*"', "", answer.text)
            assert not any(each in answer.text for each in ("<script>alert", "<img src=x", " 49 "))
            assert not any(each in seen for each in "\x1b\u202e")
        for path in (f"sessions/{line['key']}", f"groups/{line['group']}"):
            assert "&lt;script&gt;alert" in (await browser.get(f"/{path}.html")).text


@pytest.mark.parametrize(
    "row",
    [
        '{"a": ' * 100_000,
        json.dumps({"trajectory_id": "t"}),
        '{"trajectory_id": NaN}',
        "[" * 50,
        '"x"',
    ],
)
async def test_rows_that_are_none_are_named_and_end_nothing(tmp_path: Path, row: str) -> None:
    whole(tmp_path)
    (tmp_path / "part.jsonl").write_text(row + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        assert len(await lines(browser)) == 1
        assert [each["file"] for each in (await document(browser, "/data/fleet.json"))["unreadable"]] == ["part.jsonl"]


@pytest.mark.parametrize(
    "given",
    [
        {"trajectory_id": None},
        {"trajectory_id": [1]},
        {"session_id": 7},
        {"group_id": None},
        {"task_id": 7},
        {"marked": {}},
        {"turns": [{"turn_id": "turn-1", "message": "x"}]},
    ],
    ids=str,
)
async def test_names_and_messages_of_other_kinds_are_named_and_end_nothing(tmp_path: Path, given: Json) -> None:
    whole(tmp_path)
    (tmp_path / "part.jsonl").write_text(json.dumps(record(**given)) + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        assert len(await lines(browser)) == 1
        assert [each["file"] for each in (await document(browser, "/data/fleet.json"))["unreadable"]] == ["part.jsonl"]


@pytest.mark.parametrize("ids", [[2**70, 1, 2], [1.5, None, 2], "abc"])
async def test_ids_that_are_none_are_named(tmp_path: Path, ids: Json) -> None:
    (tmp_path / "part.jsonl").write_text(json.dumps(record(input_ids=ids)) + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        assert [each["file"] for each in (await document(browser, "/data/fleet.json"))["unreadable"]] == ["part.jsonl"]


async def test_what_is_no_number_is_null(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_text(json.dumps(record(logprobs=[0.0, math.nan, -math.inf])) + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        chunk = await document(browser, f"/data/sessions/{line['key']}/turns/turn-1/tokens/0.json")
        assert chunk["logprobs"] == [0.0, None, None]


async def test_ids_of_another_tokenizer_are_said_so(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_text(json.dumps(record(input_ids=[-1, -2, -3])) + "\n")
    async with site(tmp_path, load_texts(Path(model_path()))) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        answer = await browser.get(f"/data/sessions/{line['key']}/turns/turn-1.json")
        assert answer.status_code == 503 and "tokenizer" in answer.json()["error"]["message"]


async def test_half_a_character_in_an_export_breaks_no_page(tmp_path: Path) -> None:
    (tmp_path / "part.jsonl").write_text(json.dumps(record(session_id="s\ud800", task_id="\udfff")) + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        assert line["session_id"] == "s\ud800" and line["source"] == "export"
        assert (await browser.get(f"/sessions/{line['key']}.html")).status_code == 200


def record(**given: Json) -> Json:
    """A row of an export with one turn."""
    said = {"turn_id": "turn-1", "parent_id": None, "reward": 1.0, "finish_reason": "stop", "mixed_cache": False}
    row = {
        "session_id": "s",
        "group_id": "g",
        "task_id": None,
        "trajectory_id": "t",
        "marked": None,
        "input_ids": [1, 2, 3],
        "logprobs": [0.0, -1.0, -2.0],
        "versions": [-1, 4, 5],
        "loss_mask": [0, 1, 1],
        "turn_ids": [-1, 0, 0],
        "rewards": [0.0, 0.0, 1.0],
        "returns": [0.0, 1.0, 1.0],
        "turns": [said | {"message": {"role": "assistant", "content": "yes"}}],
    }
    return row | given


async def test_a_turn_that_two_rows_share_has_the_tokens_of_the_one_that_trains_it(tmp_path: Path) -> None:
    first = record()["turns"][0]
    second = first | {"turn_id": "turn-2", "parent_id": "turn-1"}
    holed = record(turns=[first, second], turn_ids=[-1, 1, 1])
    (tmp_path / "part.jsonl").write_text(f"{json.dumps(holed)}\n{json.dumps(record())}\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        (line,) = await lines(browser)
        assert (line["turns"], line["output_tokens"], line["version_min"], line["version_max"]) == (2, 4, 4, 5)
        made = await document(browser, f"/data/sessions/{line['key']}/turns/turn-1.json")
        assert (made["completion_tokens"], len(made["strip"])) == (2, 2)


async def test_shards_are_passed_over_and_an_export_that_is_too_large_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.client.dumps.samples import head

    monkeypatch.setattr(indexing, "LARGEST", 50_000)
    shard = DumpedShard(shard_id="shard-1", tensor=Tensor.of(np.zeros(100_000)))
    (tmp_path / "dump.json").write_bytes(b"".join(encode(head(), branched(), [shard])))
    (tmp_path / "other.json").write_text('{"format":"other"' + " " * 60_000)
    (tmp_path / "like-a-dump.jsonl").write_text('{"format":"rolloutfleet-dump"' + " " * 60_000)
    (tmp_path / "large.jsonl").write_text(json.dumps(record(task_id="x" * 60_000)) + "\n")
    async with site(tmp_path) as page, page.let_in() as browser:
        assert [line["session_id"] for line in await lines(browser)] == [SESSION]
        left_out = (await document(browser, "/data/fleet.json"))["unreadable"]
        assert {each["file"]: "`rolloutfleet show`" in each["why"] for each in left_out} == {
            "large.jsonl": True,
            "like-a-dump.jsonl": True,
            "other.json": True,
        }


async def test_an_export_that_expands_to_too_much_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet

    monkeypatch.setattr(indexing, "LARGEST", 50_000)
    rows = [_as_stored(record(task_id="x" * size)) for size in (10, 60_000)]
    for name, row in zip(("small", "large"), rows, strict=True):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / f"{name}.parquet", compression="zstd")
    assert (tmp_path / "large.parquet").stat().st_size < 50_000
    async with site(tmp_path) as page, page.let_in() as browser:
        assert [line["task_id"] for line in await lines(browser)] == ["x" * 10]
        (left_out,) = (await document(browser, "/data/fleet.json"))["unreadable"]
        assert left_out["file"] == "large.parquet" and "`rolloutfleet show`" in left_out["why"]


def _as_stored(row: Json) -> Json:
    """As it is in a Parquet file: what varies from message to message is text there."""
    return row | {"turns": [turn | {"message": json.dumps(turn["message"])} for turn in row["turns"]]}


async def test_few_files_stay_in_memory_however_many_are_looked_at(tmp_path: Path) -> None:
    for number in range(6):
        write_dump(tmp_path / f"{number}.json", [turn(1)])
    async with site(tmp_path) as page, page.let_in() as browser:
        for line in await lines(browser):
            await document(browser, f"/data/sessions/{line['key']}/turns/chatcmpl-1/tokens/0.json")
        kept = page.source._opened, page.source._branches
        assert [each.cache_info().currsize for each in kept] == [2, 2]


async def test_what_the_first_lines_say_is_listed_before_all_is_read(tmp_path: Path) -> None:
    for number in range(3):
        write_dump(tmp_path / f"{number}.json", deep(40))
    source = FolderSource(tmp_path, load_texts(None))
    async with source.running():
        early, complete = await source.sessions()
        assert early and not complete and early[0]["branches"] is None
        async with asyncio.timeout(PATIENCE):
            while not complete:
                await asyncio.sleep(0.01)
                late, complete = await source.sessions()
    assert len(late) == 3 and all(line["turns"] == 40 and line["branches"] == 1 for line in late)


def test_a_file_that_is_still_being_read_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, may_end = threading.Event(), threading.Event()

    def endless(_: Path) -> Iterator[Found]:
        began.set()
        may_end.wait()
        yield Found(file="large.json")

    monkeypatch.setattr("rolloutfleet.inspect.folder.looked_through", endless)

    async def look() -> None:
        async with FolderSource(tmp_path, load_texts(None)).running():
            await asyncio.to_thread(began.wait)

    page = threading.Thread(target=lambda: asyncio.run(look()))
    page.start()
    page.join(PATIENCE)
    ended = not page.is_alive()
    may_end.set()
    page.join()
    assert ended


def deep(count: int) -> list[DumpedTurn]:
    turns = [turn(1)]
    for number in range(2, count + 1):
        turns.append(turn(number, parent=turns[-1]))
    return turns
