"""Trajectories that are exported as files, and what stands in these."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.commands import CLI, Done, invoke
from tests.fleets import Fleet as Running
from tests.integration.client.fleet.agents import talked
from tests.integration.client.fleet.conftest import key_file

from rolloutfleet.fleet import Fleet
from rolloutfleet.fleet.trajectories import TYPES, read_export
from rolloutfleet.wire import TENSORS_MEDIA_TYPE


def made(fleet: Fleet, sessions: int, *, turns: int = 2) -> dict[str, list[str]]:
    """Turns by session, of sessions that are rewarded and closed."""
    found = {}
    for number in range(sessions):
        sampling = {"overrides": {"chat_template_kwargs": {"enable_thinking": number % 2 == 0}}}
        with fleet.start_session(f"task-{number}", metadata={"number": number}, sampling=sampling) as session:
            talked([session], turns=turns)
            session.reward(number / 7)
            found[session.session_id] = [turn.turn_id for turn in session.turns()]
    return found


def asked(pair: Running, *words: str) -> Done:
    return invoke(*command(pair, *words)[len(CLI) :])


def command(pair: Running, *words: str) -> list[str]:
    where = ("--url", pair.proxy.url, "--admin-key-file", str(key_file(pair)))
    return [*CLI, "export", *words, *where]


def read(folder: Path) -> list[dict[str, Any]]:
    """The records of all finished parts, as lists."""
    found: list[dict[str, Any]] = []
    for part in sorted(folder.glob("part-*")):
        if part.suffix == ".jsonl":
            found += map(json.loads, part.read_text().splitlines())
        elif part.suffix == ".parquet":
            found += _parquet(part)
        else:
            found += _safetensors(part)
    return found


def _parquet(part: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    records: list[dict[str, Any]] = pyarrow.parquet.read_table(part).to_pylist()
    for record in records:
        record["metadata"] = json.loads(record["metadata"])
        for turn in record["turns"]:
            turn["message"] = json.loads(turn["message"])
            kwargs = turn["sampling"]["chat_template_kwargs"]
            turn["sampling"]["chat_template_kwargs"] = kwargs and json.loads(kwargs)
    return records


def _safetensors(part: Path) -> list[dict[str, Any]]:
    page = read_export(part.read_bytes(), media_type=TENSORS_MEDIA_TYPE)
    return [
        {
            "trajectory_id": each.trajectory_id,
            "session_id": each.session_id,
            "metadata": each.metadata,
            "reward": row.reward,
            "turns": [turn.model_dump() for turn in each.turns],
            **{name: np.asarray(row.tensors[name]).tolist() for name in TYPES},
        }
        for each in page.trajectories
        for row in each.rows
    ]


def drained(fleet: Fleet) -> None:
    with fleet.export() as export:
        assert all(export)
