"""What files hold of rows whose export includes messages and tools."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from tests.unit.client.fleet.rows import trajectory

from rolloutfleet.files.forms import FileForm, part_writer
from rolloutfleet.fleet.trajectories import TYPES, Row, read_export
from rolloutfleet.wire import TENSORS_MEDIA_TYPE

MESSAGES = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "ü", "tool_calls": []}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look"}}]


def row(messages: Any, tools: Any) -> Row:
    tensors = {name: np.zeros(2, kind) for name, kind in TYPES.items()}
    return Row(("a",), 1.0, tensors, messages, tools)


@pytest.mark.parametrize("form", [form for form in FileForm if form is not FileForm.SFT])
def test_records_have_messages_and_tools_where_they_are_included(form: FileForm, tmp_path: Path) -> None:
    file = tmp_path / "part"
    writer = part_writer(form, file)
    writer.add(trajectory(row(MESSAGES, TOOLS), row(MESSAGES, []), row(None, None)))
    writer.close()
    assert found(form, file) == [(MESSAGES, TOOLS), (MESSAGES, []), (None, None)]


def found(form: FileForm, file: Path) -> list[tuple[Any, Any]]:
    if form is FileForm.SAFETENSORS:
        [read] = read_export(file.read_bytes(), media_type=TENSORS_MEDIA_TYPE).trajectories
        return [(each.messages, each.tools) for each in read.rows]
    if form is FileForm.JSONL:
        records = [json.loads(line) for line in file.read_text().splitlines()]
        return [(record["messages"], record["tools"]) for record in records]
    records = pyarrow.parquet.read_table(file).to_pylist()
    return [tuple(record[name] and json.loads(record[name]) for name in ("messages", "tools")) for record in records]
