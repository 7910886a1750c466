"""`rolloutfleet dumps` on a folder: what it shows, what it finds, and how it says what it can't do."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.client.dumps.samples import NAME, SESSION, head, sample, sample_turns
from tests.unit.client.dumps.strangers import BAD_HEADS, BAD_LINES, IRREGULAR, SECRET

from rolloutfleet.cli import main
from rolloutfleet.cli.show import sampled
from rolloutfleet.dumps.form import encode

Run = Callable[..., tuple[int, str, str]]

ACTIVE = f"{SESSION}-active.json"
STRANGERS = IRREGULAR | BAD_HEADS | BAD_LINES


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """(exit status, output, error output) of `rolloutfleet dumps …`"""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rolloutfleet", "dumps", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_bytes(sample())
    turns = [turn.model_copy(update={"trajectory": None}) for turn in sample_turns()[1:2]]
    first = turns[0].model_copy(update={"parent": None, "prompt_tokens": 2})
    (tmp_path / f"{ACTIVE}.imported").write_bytes(b"".join(encode(head(trajectory=None), [first])))
    (tmp_path / "notes.txt").touch()
    return tmp_path


def test_dumps_are_listed(run: Run, folder: Path) -> None:
    code, out, _ = run("list", "--dir", str(folder))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [ACTIVE, NAME]
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["imported", "ready"]
    code, out, _ = run("list", "--dir", str(folder), "--state", "ready", "--json")
    (listed,) = json.loads(out)
    assert (listed["name"], listed["task_id"], listed["trajectory"]) == (NAME, "tâche", 2)
    assert run("list", "--dir", str(folder), "--state", "importing") == (0, "no dumps\n", "")


def test_a_dump_is_shown(run: Run, folder: Path) -> None:
    code, out, _ = run("show", NAME, "--dir", str(folder))
    assert code == 0
    for said in (SESSION, "2, closed by reward", "stale", "chatcmpl-4", "context, of trajectory 1"):
        assert said in out
    assert run("show", NAME, "--dir", str(folder), "--json")[1].encode() == sample()
    assert "open" in run("show", ACTIVE, "--dir", str(folder))[1]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"temperature": 0.5, "top_p": None, "max_tokens": 9}, "temperature 0.5, max_tokens 9"),
        ({"top_k": -1, "chat_template_kwargs": {"enable_thinking": False}}, "top_k -1, enable_thinking false"),
        ({"chat_template_kwargs": {"style": "[bold]"}}, 'style "[bold]"'),
        ({"chat_template_kwargs": 3}, "-"),
        (None, "-"),
        ([1], "-"),
    ],
)
def test_what_a_turn_was_sampled_with_is_shown_whatever_a_dump_says(said: object, shown: str) -> None:
    assert sampled(said) == shown


def test_what_is_wrong_is_found(run: Run, folder: Path) -> None:
    code, out, err = run("verify", "--dir", str(folder))
    assert (code, err) == (0, "") and out.splitlines()[1].split() == [NAME, "2", "3", "1", "whole"]
    broken = bytearray(sample())
    broken[500] ^= 1
    (folder / NAME).write_bytes(broken)
    code, out, err = run("verify", "--dir", str(folder))
    assert (code, err) == (1, "rolloutfleet: 1 of 1 dump is damaged or incomplete\n") and "whole" not in out
    code, out, _ = run("verify", NAME, ACTIVE, "--dir", str(folder), "--json")
    assert code == 1 and [bool(each["problems"]) for each in json.loads(out)] == [True, False]
    code, _, err = run("show", NAME, "--dir", str(folder))
    assert code == 1 and "is damaged" in err


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS.keys())
def test_what_is_no_dump_is_said_and_nothing_of_it_is_shown(
    run: Run, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / NAME).write_bytes(sample())
    bad = "s0-0123456789ab-0011223344556677-active.json"
    make(folder / bad)
    code, out, _ = run("list", "--dir", str(folder), "--json")
    listed = {each["name"]: each for each in json.loads(out)}
    assert code == 0 and listed[NAME]["fault"] is None
    code, out, _ = run("list", "--dir", str(folder))
    assert code == 0 and NAME in out and bad in out
    code, out, _ = run("verify", "--dir", str(folder), "--json")
    assert code == 1 and {each["name"]: bool(each["problems"]) for each in json.loads(out)} == {NAME: False, bad: True}
    code, out, err = run("show", bad, "--dir", str(folder))
    assert code == 1 and err.startswith("rolloutfleet: ") and SECRET not in out + err


def test_missing_shards_are_found(run: Run, folder: Path) -> None:
    (folder / NAME).write_bytes(b"".join(encode(head(), sample_turns(), incomplete=["shard-1"])))
    code, out, _ = run("verify", "--dir", str(folder))
    assert code == 1 and "shards are missing: shard-1" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "../../etc/passwd", "--dir", "."), 2, "'../../etc/passwd' is not a valid dump name"),
        (("show", NAME, "--dir", "."), 1, f"there is no {NAME} in ."),
        (("verify", NAME, "--dir", "."), 1, "1 of 1 dump is damaged or incomplete"),
        (("list", "--dir", "nowhere"), 2, "nowhere is not a folder"),
        (("list", "--dir", ".", "--url", "http://127.0.0.1:1"), 2, "--dir is a folder"),
        (("import",), 2, "name the dumps, or give --group ID or --all"),
        (("import", NAME, "--all"), 2, "name the dumps"),
        (("import", "notes.txt"), 2, "'notes.txt' is not a valid dump name"),
        (("list",), 2, "no fleet runs from"),
    ],
)
def test_mistakes_are_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*words)
    assert status == code and said in err and len(err.splitlines()) == 1
