"""The folder of dumps: what it lists, and who gets a file."""

import threading
from pathlib import Path

import pytest
from tests.unit.client.dumps.samples import NAME, sample
from tests.unit.client.dumps.strangers import BAD_HEADS, IRREGULAR, SECRET

from rolloutfleet.dumps.files import DumpName, parse_dump_name
from rolloutfleet.dumps.form import Damaged
from rolloutfleet.settings import ProxySettings
from rolloutfleet.spec_for_proxies import SessionsSpec
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, NotClaimed, folder_of

OWN = Owner(0, "0123456789ab")
OTHER = Owner(1, "ba9876543210")
NAMES = [DumpName("s0-0123456789ab-0000000000000001", number) for number in (None, 1, 2, 10)]


@pytest.fixture
def folder(tmp_path: Path) -> DumpFolder:
    for name in NAMES:
        (tmp_path / str(name)).write_text("x" * (name.number or 0))
    for stranger in (".s0.json.tmp", "notes.txt", f"{NAMES[0]}.bak", "fleet.json"):
        (tmp_path / stranger).touch()
    return DumpFolder(tmp_path, OWN)


def test_files_are_listed_page_by_page(folder: DumpFolder) -> None:
    found = []
    after = ""
    while page := folder.listed(after=after, limit=3):
        found += page
        after = page[-1].file
    assert [str(each.name) for each in found] == sorted(map(str, NAMES))
    assert {each.name.number: each.bytes for each in found} == {None: 0, 1: 1, 2: 2, 10: 10}


def test_a_bad_file_is_one_entry_with_its_fault(tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    (dumps / NAME).write_bytes(sample())
    strangers = IRREGULAR | BAD_HEADS
    names = [f"s0-0123456789ab-{number:016x}-active.json" for number in range(len(strangers))]
    for name, make in zip(names, strangers.values(), strict=True):
        make(dumps / name)
    folder = DumpFolder(dumps, OWN)
    *bad, good = folder.listed(after="", limit=100, heads=True)
    assert (good.file, good.regular, good.head and good.head.task_id) == (NAME, True, "tâche")
    assert [each.file for each in bad] == names and all(each.head is not None and each.head.fault for each in bad)
    assert [each.regular for each in bad] == [False] * len(IRREGULAR) + [True] * len(BAD_HEADS)
    for each in bad[: len(IRREGULAR)]:
        assert each.bytes == 0 and folder.state(each.name) == "ready"
        with pytest.raises(Damaged):
            folder.open(each.name)
    assert SECRET not in repr(bad)
    whole = parse_dump_name(NAME)
    assert whole is not None
    opened = folder.open(whole)
    assert opened is not None and opened.read() == sample()
    opened.close()


def test_a_name_can_be_there_twice(folder: DumpFolder, tmp_path: Path) -> None:
    """Imported, dumped again."""
    folder.claim(NAMES[1])
    folder.finish(NAMES[1])
    (tmp_path / str(NAMES[1])).write_text("again")
    first, second = (folder.listed(after=after, limit=1)[0] for after in (str(NAMES[0]), str(NAMES[1])))
    assert (first.name, first.state, second.name, second.state) == (NAMES[1], "ready", NAMES[1], "imported")
    assert folder.state(NAMES[1]) == "ready"


def test_a_claimed_file_is_finished_or_given_back(folder: DumpFolder, tmp_path: Path) -> None:
    first, second = NAMES[1:3]
    folder.claim(first)
    folder.claim(second)
    assert sorted(map(str, folder.claimed())) == [str(first), str(second)]
    assert DumpFolder(tmp_path, OTHER).claimed() == []
    assert (folder.state(first), folder.state(NAMES[0])) == ("importing", "ready")
    folder.finish(first)
    folder.give_back(second)
    assert (folder.state(first), folder.state(second)) == ("imported", "ready")
    assert {each.state for each in folder.listed(after="", limit=9, state="imported")} == {"imported"}
    with pytest.raises(NotClaimed) as refused:
        folder.claim(first)
    assert refused.value.state == "imported"
    kept = folder.open(first)
    assert kept is not None and kept.read() == b"x"
    kept.close()


def test_giving_back_overwrites_nothing(folder: DumpFolder, tmp_path: Path) -> None:
    folder.claim(NAMES[1])
    (tmp_path / str(NAMES[1])).write_text("another")
    with pytest.raises(FileExistsError):
        folder.give_back(NAMES[1])
    assert (tmp_path / str(NAMES[1])).read_text() == "another"
    assert folder.claimed() == [NAMES[1]]


def test_one_of_many_gets_the_file(folder: DumpFolder, tmp_path: Path) -> None:
    folders = [DumpFolder(tmp_path, Owner(ordinal, OWN.store_id)) for ordinal in range(8)]
    won: list[int] = []
    lost: list[str | None] = []
    start = threading.Barrier(len(folders))

    def claim(ordinal: int) -> None:
        start.wait()
        try:
            folders[ordinal].claim(NAMES[1])
            won.append(ordinal)
        except NotClaimed as refused:
            lost.append(refused.state)

    threads = [threading.Thread(target=claim, args=(ordinal,)) for ordinal in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and lost == ["importing"] * 7


def test_no_folder_has_nothing(tmp_path: Path) -> None:
    for nowhere in (DumpFolder(None, OWN), DumpFolder(tmp_path / "missing", OWN)):
        assert nowhere.listed(after="", limit=9) == [] and nowhere.claimed() == []
        assert nowhere.open(NAMES[0]) is None and nowhere.state(NAMES[0]) is None
        with pytest.raises(NotClaimed):
            nowhere.claim(NAMES[0])


@pytest.mark.parametrize(
    ("path", "dump_dir", "folder"),
    [
        ("/dumps", None, "state/dumps"),
        ("/dumps/a/b", None, "state/dumps/a/b"),
        ("/dumps", "elsewhere", "elsewhere"),
        ("/dumps/a", "elsewhere", "elsewhere/a"),
        ("", "elsewhere", None),
    ],
)
def test_where_the_folder_is(path: str, dump_dir: str | None, folder: str | None) -> None:
    settings = ProxySettings(
        fleet="f",
        model="m",
        state_dir=Path("state"),
        gateway_url="http://127.0.0.1:1",
        dump_dir=None if dump_dir is None else Path(dump_dir),
        sessions=SessionsSpec.model_validate({"dump": {"path": path}}),
    )
    assert folder_of(settings) == (None if folder is None else Path(folder))
