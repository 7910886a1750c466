"""How the quickstart ends: with one conversation and one row of training data of the group that nobody took.

The group's files stay, for `rolloutfleet show` and `rolloutfleet inspect`.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from rolloutfleet.cli.conversations import print_conversation
from rolloutfleet.viewing import load_texts, open_file, safe
from rolloutfleet.wire import ShownTurn
from rolloutfleet_engine import model_path

TURNS_SHOWN: Final = 2
LONGEST_TEXT: Final = 160
"""Characters of a message, of those that are shown."""
BEFORE, AFTER, LAST = 4, 5, 3
"""Tokens of a row that are shown: of the prompt, of what was sampled then, and on both sides of its end."""

Row = dict[str, Any]


def row_of(export: Row) -> Row:
    """Of an export in the style `concat`, the first row, and whose it is."""
    trajectory = export["trajectories"][0]
    return {"session_id": trajectory["session_id"], **trajectory["rows"][0]["tensors"]}


def keep(folder: Path, into: Path) -> list[Path]:
    """The files of what nobody took, moved from a fleet's folder to where they stay; those of a run before go."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    return [Path(shutil.move(file, into / file.name)) for file in sorted((folder / "dumps").glob("*/*.json"))]


def show_conversation(console: Console, files: list[Path], row: Row) -> None:
    """The beginning of the row's session, as `rolloutfleet show FILE` prints all of it."""
    file = next(file for file in files if file.name.startswith(row["session_id"]))
    [recorded, *_] = open_file(file, load_texts(model_path()))
    branch = recorded.branch(None)
    assert branch is not None
    turns = branch.read()
    console.print("\n[bold]What one agent did[/]: the first calls of one session, and what the model answered\n")
    print_conversation(console, [_shortened(turn) for turn in turns[:TURNS_SHOWN]], whole=False)
    console.print(f"[dim]… and {len(turns) - TURNS_SHOWN} more calls[/]")


def _shortened(turn: ShownTurn) -> ShownTurn:
    messages = [each.model_copy(update={"message": _cut(each.message)}) for each in turn.messages]
    return turn.model_copy(update={"messages": messages})


def _cut(message: dict[str, Any]) -> dict[str, Any]:
    """With its texts shortened."""
    said = {name: value for name, value in message.items() if isinstance(value, str) and len(value) > LONGEST_TEXT}
    return message | {name: f"{value[:LONGEST_TEXT]} …" for name, value in said.items()}


def show_row(console: Console, row: Row) -> None:
    """The row's tokens where a prompt ends and an answer begins, and where that ends."""
    ids, mask = row["input_ids"], row["loss_mask"]
    texts = load_texts(model_path())(ids)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("token")
    for name in ("id", "mask", "log-prob", "weights"):
        table.add_column(name, justify="right")
    for place in shown_places(mask):
        if place is None:
            table.add_row("…", "", "", "", "")
            continue
        sampled = bool(mask[place])
        about = (f"{row['logprobs'][place]:.3f}", f"v{row['versions'][place]}") if sampled else ("", "")
        text = safe(repr(texts[place])[1:-1]) if texts[place] is not None else "(the same character)"
        table.add_row(text, str(ids[place]), str(mask[place]), *about, style="" if sampled else "dim")
    console.print(
        f"\n[bold]What a trainer gets of it[/]: one row of {len(ids):,} tokens.\n"
        f"Mask 1: the model sampled this token, so it is trained ({sum(mask):,} of them). Beside it: its\n"
        "log-probability, and which version of the weights sampled it.\n"
        "Mask 0: prompts and tool results.\n"
    )
    console.print(table)


def shown_places(mask: list[int]) -> Iterator[int | None]:
    """Around where the first answer begins and ends; None for what is left out."""
    begin = mask.index(1)
    end = begin + [*mask[begin:], 0].index(0)
    places = {place for place in range(begin - BEFORE, begin + AFTER) if 0 <= place < end}
    places |= {place for place in range(end - LAST, end + LAST) if begin <= place < len(mask)}
    before = -1
    for place in [*sorted(places), len(mask)]:
        if place != before + 1:
            yield None
        if place < len(mask):
            yield place
        before = place
