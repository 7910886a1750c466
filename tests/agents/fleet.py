"""A fleet whose engine says what is laid down for the real programs, and has room for little more than that."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fleets import Fleet, running_fleet
from tests.waiting import until

from rolloutfleet_engine.model import model_path
from rolloutfleet_proxy.failpoints import ANY, VARIABLE

TOKEN_LATENCY = "0.004"
"""Seconds from token to token, so that an answer can be cut while it is made."""

PLACES = "places"
"""Folder in that of a fleet: a file of a failpoint's name holds its proxy there."""

Json = Any
Cues = Mapping[str, Sequence[Mapping[str, Json]]]


@contextmanager
def fleet_on_cue(
    folder: Path,
    cues: Mapping[str, Sequence[Mapping[str, Json]]],
    *,
    context: int,
    engine_options: tuple[str, ...] = (),
    chat_format: str | None = None,
) -> Iterator[Fleet]:
    """`cues`: replies by what the user says. `context`: tokens of prompt and output together. `chat_format`: another
    than the model's own, whose marks it has too; calls are written in the text of replies then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "cues.json"
    file.write_text(json.dumps([{"cue": cue, "replies": replies} for cue, replies in cues.items()]))
    model = _model(folder / "model", context)
    options = ("--cues", str(file), "--model-path", str(model), "--token-latency", TOKEN_LATENCY)
    (folder / PLACES).mkdir()
    settings: Json = {"tokenizer": {"path": str(model), "renderer": chat_format}}
    waiting = {VARIABLE: f"{ANY}@{folder / PLACES}"}
    with running_fleet(folder, engine_options=options, settings=settings, environment=waiting) as fleet:
        yield fleet


def call(name: str, **arguments: Json) -> dict[str, Json]:
    return {"name": name, "arguments": arguments}


def weather_rounds(tool: str) -> list[dict[str, Json]]:
    """Replies to the question of the loops: one call, two calls at once, and an answer."""
    first, *others = (call(tool, city=city) for city in ("Oslo", "Lima", "Cairo"))
    return [
        {"reasoning": "Oslo first.", "calls": [first]},
        {"text": "Now both others.", "calls": others},
        {"reasoning": "That is all.", "text": "Sunny everywhere."},
    ]


def until_a_second_answer_is_made(fleet: Fleet, before: dict[str, int]) -> None:
    def begun() -> bool:
        now = fleet.engine.counters()
        finished = now["finished"] - before["finished"]
        return finished > 1 or bool(finished and now["running"])

    until(begun)


def _model(folder: Path, context: int) -> Path:
    """The shipped model, with another length of context."""
    shutil.copytree(model_path(), folder)
    for name, field in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        file = folder / name
        file.write_text(json.dumps({**json.loads(file.read_text()), field: context}))
    return folder
