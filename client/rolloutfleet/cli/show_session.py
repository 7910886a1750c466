"""`rolloutfleet show`: what was said and sampled in a session, of a fleet or in a file that it left."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from rolloutfleet.cli.conversations import By, print_conversation, print_tokens, print_tree
from rolloutfleet.cli.failures import failed, wrong
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_options
from rolloutfleet.cli.show import console, print_json, text
from rolloutfleet.viewing import NoTokenizer, Recorded, Unreadable, ending_facts, load_texts, merged, open_file, safe
from rolloutfleet.wire import ShownTurn, Turn
from rolloutfleet.wording import counted

_SUFFIXES: Final = (".json", ".jsonl", ".parquet", ".safetensors", ".imported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown."""

    name: str
    facts: dict[str, Any]
    tree: list[Turn] | list[ShownTurn]
    turns: list[ShownTurn]
    """Of the branch."""
    others: list[Recorded] = field(default_factory=list)
    """What else a file holds."""


@takes_options
def show(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SESSION|FILE", help="A session's id; or a file of `dumps`, `export -o` or `export --to`."
        ),
    ],
    branch: Annotated[
        str | None, typer.Option(metavar="TURN", help="The last turn of the branch, by id or number; else the newest.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show tokens in place of messages.")] = False,
    by: Annotated[By, typer.Option(help="What the tokens' colours stand for.")] = By.LOGPROB,
    full: Annotated[bool, typer.Option("--full", help="Shorten no text.")] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Of the model: for text of tokens in files, which hold ids.")
    ] = None,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Show a session: the tree of its turns, and the conversation along one branch, or its tokens.

    Colours say how likely each token was, of which weights it is, whether it is trained, or how far the trainer's
    log-probability is (mismatch). Without colours (NO_COLOR, or into a pipe), --tokens prints a line for each token.
    """
    view = _of_file(Path(what), branch, tokenizer) if _is_file(what) else _of_fleet(options, what, branch)
    if as_json:
        _print_json(view)
        return
    out = console()
    facts = "  ".join(f"{name} {safe(value)}" for name, value in view.facts.items() if value not in (None, ""))
    out.print(Text.assemble((safe(view.name), "bold"), "  ", facts), soft_wrap=True)
    print_tree(out, view.tree, frozenset(turn.turn_id for turn in view.turns))
    for other in view.others:
        out.print(
            Text(f"also in this file: {safe(other.name)}, {counted(len(other.turns), 'turn')}", "dim"), soft_wrap=True
        )
    if tokens:
        print_tokens(out, view.turns, by)
    else:
        print_conversation(out, view.turns, whole=full)


def _is_file(what: str) -> bool:
    return os.sep in what or what.endswith(_SUFFIXES) or Path(what).is_file()


def _of_fleet(options: FleetOptions, session: str, branch: str | None) -> Shown:
    with options.fleet() as fleet:
        status = fleet.status(session)
        tree = fleet.turns(session)
        turns = merged(fleet.conversation(session, branch=_named(tree, branch)))
    facts = {
        "task": status.task_id,
        "group": status.group_id,
        "state": status.state,
        **ending_facts(status.outcome, status.outcome_reason),
        "tokens": status.tokens,
    }
    return Shown(name=session, facts=facts, tree=tree, turns=turns)


def _of_file(file: Path, branch: str | None, tokenizer: Path | None) -> Shown:
    try:
        found = open_file(file, load_texts(tokenizer))
        for recorded in found:
            held = recorded.branch(_named(recorded.turns, branch))
            if held is not None:
                others = [other for other in found if other is not recorded]
                return Shown(
                    name=recorded.name,
                    facts=recorded.facts,
                    tree=list(recorded.turns),
                    turns=held.read(),
                    others=others,
                )
    except (Unreadable, NoTokenizer) as error:
        raise failed(safe(error)) from None
    raise wrong(f"{file} has no turn {branch}" if branch else f"{file} has no turns")


def _named(turns: list[Turn] | Any, branch: str | None) -> str | None:
    """The turn that a number means, in the order of the tree."""
    if branch is None or not branch.isdecimal():
        return branch
    if not 1 <= int(branch) <= len(turns):
        raise wrong(f"--branch: there is no turn {branch}; the last one is {len(turns)}")
    named: str = turns[int(branch) - 1].turn_id
    return named


def _print_json(view: Shown) -> None:
    """In ASCII: a terminal shows what is in it, too."""
    told = {
        "name": view.name,
        **{name: value for name, value in view.facts.items() if text(value) != "-"},
        "tree": [
            turn.model_dump(exclude={"output_ids", "logprobs", "versions", "messages", "tokens", "tools"})
            for turn in view.tree
        ],
        "turns": [turn.model_dump() for turn in view.turns],
    }
    print_json(told, ensure_ascii=True)
