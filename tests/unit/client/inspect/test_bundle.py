"""A bundle has the live page's pages and documents as files, replaces bundles alone, and says when it is whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.commands import invoke
from tests.unit.client.dumps.samples import head, turn
from tests.unit.client.inspect.sites import document, site, whole, write_dump

from rolloutfleet.inspect.bundle import MARK, NotABundle, NothingChosen, Selection, Written, write_bundle
from rolloutfleet.inspect.folder import FolderSource
from rolloutfleet.inspect.sources import NotThere
from rolloutfleet.viewing import load_texts

ALL = Selection()
Json = Any


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


async def source_of(folder: Path) -> FolderSource:
    source = FolderSource(folder, load_texts(None))
    await source.refresh()
    return source


async def bundled(folder: Path, into: Path, selection: Selection = ALL) -> Written:
    return await write_bundle(await source_of(folder), into, selection, lambda *_: None)


async def test_every_file_of_a_bundle_is_what_the_live_page_answers(tmp_path: Path) -> None:
    folder = whole(tmp_path / "dumps")
    written = await bundled(folder, tmp_path / "bundle")
    made = files(tmp_path / "bundle")
    assert json.loads(made.pop(MARK))["complete"] is True
    assert written.sessions == 1 and not written.missing
    async with site(folder) as page, page.let_in() as browser:
        for path, content in made.items():
            assert (await browser.get(f"/{path}")).content == content, path
        (line,) = (await document(browser, "/data/sessions.json"))["sessions"]
    assert {path for path in made if "/tokens/" in path} == {
        f"data/sessions/{line['key']}/turns/chatcmpl-{number}/tokens/{chunk}.json"
        for number, chunk in ((1, 0), (1, 1), (2, 0), (2, 1), (3, 0))
    }
    names = {f"sessions/{line['key']}.html", f"groups/{line['group']}.html", f"data/sessions/{line['key']}/tree.json"}
    assert names | {"index.html", "sessions.html", "data/fleet.json", "data/sessions.json"} <= set(made)


async def test_no_link_of_a_bundle_begins_at_the_servers_root(tmp_path: Path) -> None:
    await bundled(whole(tmp_path / "dumps"), tmp_path / "bundle")
    pages = {path: content.decode() for path, content in files(tmp_path / "bundle").items() if path.endswith(".html")}
    links = {link for page in pages.values() for link in re.findall(r'(?:href|src|content)="([^"]*)"', page)}
    assert links and not any(link.startswith(("/", "http", "//")) for link in links)


async def many(folder: Path) -> Path:
    for number in range(4):
        task = "even" if number % 2 == 0 else "odd"
        session = {"session_id": f"s{number}", "task_id": task, "created_at": float(number)}
        write_dump(folder / f"{number}.json", [turn(1)], session=session)
    return folder


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(), ["s3", "s2", "s1", "s0"]),
        (Selection(limit=2), ["s3", "s2"]),
        (Selection(task_id="even"), ["s2", "s0"]),
        (Selection(session_ids=("s1", "s0", "none")), ["s1", "s0"]),
    ],
)
async def test_the_sessions_that_were_chosen_are_written_and_no_others(
    tmp_path: Path, selection: Selection, expected: list[str]
) -> None:
    written = await bundled(await many(tmp_path / "dumps"), tmp_path / "bundle", selection)
    listed = json.loads((tmp_path / "bundle" / "data" / "sessions.json").read_bytes())["sessions"]
    assert [line["session_id"] for line in listed] == expected and written.sessions == len(expected)
    assert set(written.missing) == set(selection.session_ids) - set(expected)
    assert len([path for path in files(tmp_path / "bundle") if path.endswith("tree.json")]) == len(expected)
    group = (tmp_path / "bundle" / "groups").glob("*.html")
    assert all(page.read_text().count("../sessions/") == len(expected) for page in group)


async def test_an_earlier_bundle_is_replaced_and_nothing_else_ever(tmp_path: Path) -> None:
    folder, into = await many(tmp_path / "dumps"), tmp_path / "bundle"
    await bundled(folder, into)
    await bundled(folder, into, Selection(limit=1))
    assert len([path for path in files(into) if path.endswith("tree.json")]) == 1
    (into / "notes.txt").write_text("mine")
    before = files(into)
    with pytest.raises(NotABundle, match="something else"):
        await bundled(folder, into)
    assert files(into) == before
    for content in ("{}", "[1]", "x", ""):
        other = tmp_path / f"other{len(content)}"
        other.mkdir()
        (other / MARK).write_text(content)
        (other / "index.html").write_text("mine")
        with pytest.raises(NotABundle):
            await bundled(folder, other)
        assert files(other) == {MARK: content.encode(), "index.html": b"mine"}


@pytest.mark.parametrize("selection", [Selection(task_id="none"), Selection(session_ids=("s9",))])
async def test_where_no_session_is_chosen_an_earlier_bundle_stays(tmp_path: Path, selection: Selection) -> None:
    folder, into = await many(tmp_path / "dumps"), tmp_path / "bundle"
    with pytest.raises(NothingChosen):
        await bundled(folder, into, selection)
    assert not into.exists()
    await bundled(folder, into)
    before = files(into)
    with pytest.raises(NothingChosen):
        await bundled(folder, into, selection)
    assert files(into) == before


async def test_a_bundle_does_not_say_where_its_files_were(tmp_path: Path) -> None:
    await bundled(whole(tmp_path / "dumps"), tmp_path / "bundle")
    assert [path for path, content in files(tmp_path / "bundle").items() if str(tmp_path).encode() in content] == []


class Interrupted(FolderSource):
    """Broken off in its second session."""

    trees = 0

    async def tree(self, key: str) -> Json:
        self.trees += 1
        if self.trees == 3:
            raise KeyboardInterrupt
        return await super().tree(key)


async def test_one_that_was_broken_off_says_so_has_no_first_page_and_is_written_anew(tmp_path: Path) -> None:
    folder, into = await many(tmp_path / "dumps"), tmp_path / "bundle"
    source = Interrupted(folder, load_texts(None))
    await source.refresh()
    with pytest.raises(KeyboardInterrupt):
        await write_bundle(source, into, ALL, lambda *_: None)
    assert json.loads((into / MARK).read_bytes())["complete"] is False and not (into / "index.html").exists()
    assert (await bundled(folder, into)).sessions == 4
    assert json.loads((into / MARK).read_bytes())["complete"] is True


class Leaving(FolderSource):
    """A session of it is gone by the time it is read."""

    async def tree(self, key: str) -> Json:
        found = await super().tree(key)
        if found["session"]["session_id"] == "s1":
            raise NotThere
        return found


async def test_a_session_that_is_gone_meanwhile_is_named_and_linked_nowhere(tmp_path: Path) -> None:
    source = Leaving(await many(tmp_path / "dumps"), load_texts(None))
    await source.refresh()
    written = await write_bundle(source, tmp_path / "bundle", ALL, lambda *_: None)
    assert written.sessions == 3 and list(written.missing) == ["s1"]
    listed = json.loads((tmp_path / "bundle" / "data" / "sessions.json").read_bytes())["sessions"]
    assert [line["session_id"] for line in listed] == ["s3", "s2", "s0"]


def test_the_command_writes_one_and_says_how_to_show_it(tmp_path: Path) -> None:
    folder = whole(tmp_path / "dumps")
    done = invoke("inspect", "--dumps", str(folder), "--bundle", str(tmp_path / "bundle"))
    assert done.returncode == 0 and "1 session," in done.stdout and "http.server" in done.stdout, done.stderr
    again = invoke("inspect", "--dumps", str(folder), "--bundle", str(folder))
    assert again.returncode == 2 and "holds something else" in again.stderr and again.stderr.count("\n") == 1
    assert head().session.session_id in (tmp_path / "bundle" / "data" / "sessions.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--dumps", "none"), "--dumps: none is not a folder"),
        (("--tokenizer", "x", "--url", "http://127.0.0.1:9"), "--tokenizer goes with --dumps"),
        (("--dumps", ".", "--session", "x"), "go with --bundle"),
        (("--dumps", ".", "--port", "65536"), "--port"),
    ],
)
def test_what_can_not_be_meant_is_said_in_a_line(words: tuple[str, ...], said: str) -> None:
    done = invoke("inspect", *words)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr
