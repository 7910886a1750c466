"""A folder of dumps may hold anything: only regular files are opened, and of a bad one no more is read than needed."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.client.dumps.samples import NAME, sample
from tests.unit.client.dumps.strangers import BAD_HEADS, BAD_LINES, IRREGULAR

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.files import glance, open_dump
from rolloutfleet.dumps.form import Damaged
from rolloutfleet.dumps.reading import load
from rolloutfleet.wire import Glance

Make = Callable[[Path], None]
MOST = 8 << 20
"""Bytes that a look at a bad file may take."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "dumps").mkdir()
    return tmp_path / "dumps" / NAME


def test_a_dump_shows_its_head(file: Path) -> None:
    file.write_bytes(sample())
    group = "g3-0123456789ab-0000000000000000"
    assert glance(file) == Glance(group_id=group, task_id="tâche", reason="stale", dumped_at=1e9 + 1)


@pytest.mark.parametrize("make", (IRREGULAR | BAD_HEADS).values(), ids=(IRREGULAR | BAD_HEADS).keys())
def test_what_is_no_dump_has_a_fault_that_can_be_shown(file: Path, make: Make) -> None:
    make(file)
    found = glance(file)
    assert found.fault and len(found.fault) < 500 and found == Glance(fault=found.fault)
    json.dumps(dict(found), ensure_ascii=False).encode()


@pytest.mark.parametrize("make", IRREGULAR.values(), ids=IRREGULAR.keys())
def test_only_regular_files_are_opened(file: Path, make: Make) -> None:
    make(file)
    with pytest.raises(Damaged, match="not a regular file"):
        open_dump(file)


@pytest.mark.parametrize("make", (BAD_HEADS | BAD_LINES).values(), ids=(BAD_HEADS | BAD_LINES).keys())
def test_a_bad_file_takes_no_memory(file: Path, make: Make) -> None:
    make(file)
    tracemalloc.start()
    try:
        glance(file)
        for read in (load, verify):
            with open_dump(file) as opened:
                try:
                    assert read(opened)
                except Damaged as error:
                    assert len(str(error)) < 500
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_letter_of_two_halves_is_one(file: Path) -> None:
    file.write_bytes(sample().replace("tâche".encode(), rb"\\\ud83d\ude00 \u00e9"))
    assert glance(file).task_id == "\\\N{GRINNING FACE} é"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_json_does_not_know_is_no_number(file: Path, number: str) -> None:
    file.write_bytes(sample().replace(b'"x":null', f'"x":{number}'.encode()))
    fault = glance(file).fault
    assert fault is not None and "is not a number of JSON" in fault
