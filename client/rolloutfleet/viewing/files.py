"""Dumps and exports as files, read to be looked at: their turns, and the branches that they hold.

The forms: docs/dumps.md, docs/export.md#files, and the answer of `POST /export`, as JSON or safetensors.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from rolloutfleet.dumps.form import Damaged, Dump, DumpedTurn
from rolloutfleet.dumps.reading import load
from rolloutfleet.files.forms import MissingLibrary, load_pyarrow, records
from rolloutfleet.fleet.exceptions import FleetError
from rolloutfleet.fleet.trajectories import TYPES, read_export
from rolloutfleet.viewing.sessions import Recorded, RecordedBranch, ending_facts
from rolloutfleet.viewing.texts import Texts
from rolloutfleet.wire import JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE, ShownMessage, ShownTokens, ShownTurn, TurnTiming

Json = dict[str, Any]

DUMP_BEGINS: Final = b'{"format":"rolloutfleet-dump"'
OF_RECORDS: Final = (".jsonl", ".parquet", ".safetensors")
"""Ends of names; such a file is no dump, whatever it begins with."""
_NAMES: Final[Json] = {
    **dict.fromkeys(("trajectory_id", "session_id", "group_id"), str),
    **dict.fromkeys(("task_id", "marked"), str | None),
}
"""Of a record, and what they are, whatever wrote the file."""
_NOT_IN_FILES: Final[Json] = {
    **dict.fromkeys(("trajectory_state", "timing", "tools", "template_kwargs")),
    "leases": [],
    "messages": [],
    "tokens": ShownTokens(start=0, input_ids=[], texts=[], logprobs=[], versions=[], loss_mask=[]),
}
"""Placeholders for a turn of which a file says nothing, or no texts are wanted."""
_OF_TURN: Final = {
    *("turn_id", "number", "lineage", "branch_reason", "finish_reason", "mixed_cache"),
    *("discarded", "delivered", "created_at", "prompt_tokens", "note"),
}
_EXTRAS: Final = ("constrained", "biased_by", "stripped", "placeholders", "special_tokens_in_text", "sampling")
"""Fields of a turn that have the same names in a dump."""


class Unreadable(Exception):
    """The file holds nothing that can be shown; the message says why."""


def open_file(file: Path, texts: Texts, *, most: int | None = None) -> list[Recorded]:
    """What a dump or an export has. Raises Unreadable.

    `most`: bytes that a Parquet file, which is compressed, may expand to. One row is in memory before it is counted.
    """
    try:
        match file.suffix:
            case ".jsonl":
                return _of_records(_lines(file), texts)
            case ".parquet":
                return _of_records(_parquet(file, most), texts)
            case ".safetensors":
                return _of_records(_exported(file, TENSORS_MEDIA_TYPE), texts)
        with file.open("rb") as opened:
            begins = opened.read(len(DUMP_BEGINS))
            if begins == DUMP_BEGINS:
                opened.seek(0)
                return [_of_dump(load(opened, shards=False), texts)]
        return _of_records(_exported(file, JSON_MEDIA_TYPE), texts)
    except (Damaged, FleetError, MissingLibrary) as error:
        raise Unreadable(f"{file}: {error}") from None
    except OSError as error:
        raise Unreadable(f"{file} can't be read: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Unreadable(f"{file} is neither a dump nor an export ({type(error).__name__})") from None


# Dumps


def _of_dump(dump: Dump, texts: Texts) -> Recorded:
    session, by_number = dump.head.session, {turn.number: turn for turn in dump.turns}
    parents = {turn.parent for turn in dump.turns}
    paths = [_path(by_number, turn) for turn in dump.turns if turn.number not in parents]
    why = {"kept": "a copy"} if dump.head.is_kept else {"dumped because": dump.head.reason}
    ending = ending_facts(session.outcome, session.outcome_reason)
    facts = {"task": session.task_id, "group": session.group_id, **why, **ending}
    return Recorded(
        name=session.session_id,
        facts=facts,
        turns=[_of_dumped(dump, by_number, turn, None) for turn in dump.turns],
        branches=[
            RecordedBranch(
                path[-1].turn_id, [turn.turn_id for turn in path], partial(_read_path, dump, by_number, path, texts)
            )
            for path in paths
        ],
        versions=_each_once(turn.versions.numpy() for turn in dump.turns),
    )


def _each_once(versions: Iterable[np.ndarray[Any, Any]]) -> list[int]:
    return sorted({version for each in versions for version in np.unique(each).tolist() if version >= 0})


def _path(by_number: Mapping[int, DumpedTurn], last: DumpedTurn) -> list[DumpedTurn]:
    path = [last]
    while len(path) <= len(by_number) and (parent := by_number.get(path[-1].parent or 0)) is not None:
        path.append(parent)
    return path[::-1]


def _read_path(
    dump: Dump, by_number: Mapping[int, DumpedTurn], path: list[DumpedTurn], texts: Texts
) -> list[ShownTurn]:
    return [_of_dumped(dump, by_number, turn, texts) for turn in path]


def _of_dumped(dump: Dump, by_number: Mapping[int, DumpedTurn], turn: DumpedTurn, texts: Texts | None) -> ShownTurn:
    """With its messages and tokens where there are `texts`."""
    for name, tensor in {"logprobs": turn.logprobs, "versions": turn.versions, **turn.annotations}.items():
        if tensor.shape != turn.output_ids.shape:
            raise Damaged(f"turn {turn.turn_id}: {name} has another shape than its output_ids")
    prompt, output = turn.new_prompt_ids.numpy().tolist(), turn.output_ids.numpy().tolist()
    extras, tools, parent = turn.extras or {}, turn.tools or {}, by_number.get(turn.parent or 0)
    trained, timing = int(not turn.discarded and not turn.context), extras.get("timing")
    of_session = f"{dump.head.session.session_id}-trajectory-{turn.trajectory}"
    shown: Json = {
        **_NOT_IN_FILES,
        **{name: extras[name] for name in _EXTRAS if name in extras},
        **turn.model_dump(include=_OF_TURN, exclude_none=True),
        "reward": turn.reward,
        "parent_id": None if parent is None else parent.turn_id,
        "trajectory_id": None if turn.trajectory is None else of_session,
        "new_prompt_tokens": len(prompt),
        "completion_tokens": len(output),
        "timing": None if timing is None else dict(zip(TurnTiming.model_fields, timing, strict=True)),
        "tools": tools.get("tools"),
        "template_kwargs": tools.get("template_kwargs"),
    }
    if texts is not None:
        shown["messages"] = [
            {"index": index, "message": message}
            for index, message in enumerate([*turn.messages, turn.output], turn.matching.start)
        ]
        shown["tokens"] = {
            "start": 0,
            "input_ids": [*prompt, *output],
            "texts": [*texts(prompt), *texts(output)],
            "logprobs": [*[0.0] * len(prompt), *turn.logprobs.numpy().tolist()],
            "versions": [*[-1] * len(prompt), *turn.versions.numpy().tolist()],
            "loss_mask": [*[0] * len(prompt), *[trained] * len(output)],
            "annotations": {
                name: [*[None] * len(prompt), *(None if math.isnan(each) else each for each in said.numpy().tolist())]
                for name, said in turn.annotations.items()
            },
        }
    return ShownTurn.model_validate(shown)


# Exports: each row as a record (`files.forms.records`)


def _exported(file: Path, media_type: str) -> Iterator[Json]:
    page = read_export(file.read_bytes(), media_type=media_type)
    for trajectory in page.trajectories:
        if any(not isinstance(tensor, np.ndarray) for row in trajectory.rows for tensor in row.tensors.values()):
            raise FleetError("its tensors are shards, which are at the fleet: export as tensors")
        yield from records(trajectory)


def _lines(file: Path) -> Iterator[Json]:
    with file.open("rb") as opened:
        for line in opened:
            record = json.loads(line)
            yield record | {name: np.array(record[name], kind) for name, kind in TYPES.items()}


def _parquet(file: Path, most: int | None) -> Iterator[Json]:
    for batch in _batches(file, most):
        for record in batch.to_pylist():
            for turn in record["turns"]:
                turn["message"] = json.loads(turn["message"])
                if (turn.get("sampling") or {}).get("chat_template_kwargs"):
                    turn["sampling"]["chat_template_kwargs"] = json.loads(turn["sampling"]["chat_template_kwargs"])
            yield record | {name: np.array(record[name], kind) for name, kind in TYPES.items()}


def _batches(file: Path, most: int | None) -> Iterator[Any]:
    """Of rows, as long as neither what the file says of them nor what came exceeds `most` bytes. Raises Unreadable."""
    opened = load_pyarrow().parquet.ParquetFile(str(file))
    groups = (opened.metadata.row_group(number) for number in range(opened.num_row_groups))
    _bound(file, sum(group.total_byte_size for group in groups), most)
    read = 0
    for batch in opened.iter_batches(batch_size=16 if most is None else 1):
        read += batch.nbytes
        _bound(file, read, most)
        yield batch


def _bound(file: Path, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise Unreadable(f"{file} holds more than {most >> 20} MiB: `rolloutfleet show` may show it")


def _of_records(found: Iterable[Json], texts: Texts) -> list[Recorded]:
    """The rows of each trajectory, which come one after the other."""
    grouped: dict[str, list[Json]] = {}
    for record in found:
        if not all(isinstance(record[name], kind) for name, kind in _NAMES.items()):
            raise TypeError
        if len({len(record[name]) for name in TYPES}) > 1:
            raise FleetError(f"row {record['row']} of {record['trajectory_id']} has lists of different lengths")
        grouped.setdefault(record["trajectory_id"], []).append(record)
    return [_of_rows(name, rows, texts) for name, rows in grouped.items()]


def _of_rows(name: str, rows: list[Json], texts: Texts) -> Recorded:
    paths = [[turn["turn_id"] for turn in row["turns"]] for row in rows]
    order = {turn_id: number for number, turn_id in enumerate(dict.fromkeys(chain.from_iterable(paths)), 1)}
    turns: dict[str, ShownTurn] = {}
    for row in rows:
        for turn in _read_row(row, None, order):
            known = turns.get(turn.turn_id)
            if known is None or not known.completion_tokens:
                turns[turn.turn_id] = turn
    facts = {"session": rows[0]["session_id"], "task": rows[0]["task_id"], "group": rows[0]["group_id"]}
    return Recorded(
        name=name,
        facts=facts
        | {"marked": rows[0]["marked"]}
        | ending_facts(rows[0].get("outcome"), rows[0].get("outcome_reason")),
        turns=list(turns.values()),
        branches=[
            RecordedBranch(ids[-1] if ids else "", ids, partial(_read_row, row, texts, order))
            for row, ids in zip(rows, paths, strict=True)
        ],
        versions=_each_once(row["versions"] for row in rows),
    )


def _read_row(row: Json, texts: Texts | None, order: Mapping[str, int]) -> list[ShownTurn]:
    """Its own turns: what stands before a turn's sampled tokens is new in its prompt, or was trained elsewhere."""
    ends, shown, index = 0, [], row["turn_ids"]
    for place, turn in enumerate(row["turns"]):
        own = np.flatnonzero(index == place)
        first, end = (int(own[0]), int(own[-1]) + 1) if len(own) else (ends, ends)
        if place == len(row["turns"]) - 1:
            end = len(index) if texts is not None and not len(own) else end
            first = first if len(own) else end
        tokens = {name: row[name][ends:end].tolist() for name in ("input_ids", "logprobs", "versions", "loss_mask")}
        ids = tokens["input_ids"]
        message = ShownMessage.model_validate({"index": place, "message": turn["message"]})
        own_turn: Json = {
            **turn,
            **_NOT_IN_FILES,
            "number": order[turn["turn_id"]],
            "trajectory_id": row["trajectory_id"],
            "discarded": False,
            "delivered": True,
            "created_at": 0.0,
            "prompt_tokens": first,
            "completion_tokens": len(own),
            "new_prompt_tokens": first - ends,
        }
        if texts is not None:
            own_turn["messages"] = [message]
            pieces = [*texts(ids[: first - ends]), *texts(ids[first - ends :])]
            own_turn["tokens"] = {"start": 0, **tokens, "texts": pieces}
        shown.append(ShownTurn.model_validate(own_turn))
        ends = end
    return shown
