"""A session's turns, messages and tokens as text for a terminal. All that others wrote goes through `safe`."""

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from rolloutfleet.cli.show import reason, text
from rolloutfleet.viewing import limbs, safe
from rolloutfleet.wire import ShownTurn, Turn, TurnTiming

DEEPEST: Final = 12
"""Branches that are drawn one further to the right than the other."""
SHORTENED: Final = 2_000
"""Characters of a text, unless all of it is asked for."""

_ROLES: Final = {
    "system": "magenta",
    "developer": "magenta",
    "user": "blue",
    "assistant": "green",
    "tool": "yellow",
}
_LOGPROBS: Final = ((-0.05, "green"), (-0.3, "cyan"), (-1.0, "yellow"), (-2.5, "magenta"))
"""Colours of tokens that are at least so likely."""
_UNLIKELY: Final = "bold red"
_MISMATCHES: Final = ((0.01, "green"), (0.1, "cyan"), (0.5, "yellow"))
"""Colours of tokens whose log-probability is no further from the trainer's."""
TRAINERS: Final = "logprobs"
"""The annotation that has those."""
_VERSIONS: Final = ("green", "cyan", "yellow", "magenta", "blue", "red")
"""Colours of weight versions in turn."""
_PROMPT: Final = "dim"


class By(StrEnum):
    """What colours stand for."""

    LOGPROB = "logprob"
    VERSION = "version"
    MASK = "mask"
    MISMATCH = "mismatch"


def print_tree(console: Console, turns: Sequence[Turn | ShownTurn], shown: frozenset[str]) -> None:
    """A line a turn; those that are `shown` below are marked."""
    numbers = {turn.turn_id: number for number, turn in enumerate(turns, 1)}
    for turn, depth, forks in limbs(turns):
        line = Text("  " * min(depth, DEEPEST) + ("└ " if forks and depth else ""))
        line.append("● " if turn.turn_id in shown else "○ ", "bold green" if turn.turn_id in shown else "dim")
        line.append(f"{numbers[turn.turn_id]} ", "bold")
        line.append(safe(turn.turn_id))
        line.append(f"  {turn.prompt_tokens}+{turn.completion_tokens} tokens  {safe(turn.finish_reason)}", "dim")
        if turn.reward is not None:
            line.append(f"  reward {turn.reward:g}", "bold yellow")
        if turn.lineage.kind != "main":
            line.append(f"  {safe(turn.lineage.kind)} {safe(text(turn.lineage.id))}", "cyan")
        if turn.branch_reason is not None:
            line.append(f"  fork: {safe(reason(turn.branch_reason))}", "red")
        if getattr(turn, "discarded", False):
            line.append("  discarded", "red")
        console.print(line, soft_wrap=True)


def print_conversation(console: Console, turns: Sequence[ShownTurn], *, whole: bool) -> None:
    """Every message, the tools before the first."""
    for turn in turns:
        console.print(_heading(turn), soft_wrap=True)
        if turn.note:
            console.print(Text.assemble(("note ", "bold"), safe(turn.note)), soft_wrap=True)
        if turn.tools:
            names = ", ".join(_name(tool) for tool in turn.tools)
            console.print(Text.assemble(("tools ", "bold"), (safe(_shortened(names, whole)), "dim")), soft_wrap=True)
        for each in turn.messages:
            _print_message(console, each.message, whole=whole)
            if each.cut is not None:
                console.print(Text(f"… the beginning of {each.cut} bytes", "dim italic"))


def print_tokens(console: Console, turns: Sequence[ShownTurn], by: By) -> None:
    """Each token in its colour; where there are no colours, a line each."""
    if console.no_color or not console.is_terminal:
        _print_rows(turns)
        return
    versions = sorted({version for turn in turns for version in turn.tokens.versions if version >= 0})
    console.print(_legend(by, versions))
    for turn in turns:
        console.print(_heading(turn), soft_wrap=True)
        for line in _coloured(turn, by, versions):
            console.print(line, soft_wrap=True)


def _print_rows(turns: Sequence[ShownTurn]) -> None:
    """Columns between tabs, for other programs."""
    series = sorted({name for turn in turns for name in turn.tokens.annotations})
    print("turn", "token", "id", "logprob", "version", "mask", "text", *series, sep="\t")
    for turn in turns:
        tokens = turn.tokens
        rows = zip(tokens.input_ids, tokens.logprobs, tokens.versions, tokens.loss_mask, tokens.texts, strict=True)
        for place, (token_id, logprob, version, mask, piece) in enumerate(rows, tokens.start):
            written = "" if piece is None else safe(json.dumps(piece, ensure_ascii=False))
            said = (_number(tokens.annotations.get(name), place - tokens.start) for name in series)
            print(turn.number, place, token_id, f"{logprob:.4f}", version, mask, written, *said, sep="\t")


def _number(numbers: Sequence[float | None] | None, place: int) -> str:
    number = None if numbers is None else numbers[place]
    return "" if number is None else f"{number:.4f}"


def _coloured(turn: ShownTurn, by: By, versions: list[int]) -> Iterator[Text]:
    """The turn's tokens as lines; a line break among them is written as one, and breaks the line."""
    tokens, line = turn.tokens, Text()
    for place, piece in enumerate(tokens.texts):
        if piece is None:
            continue
        sampled = tokens.start + place >= turn.new_prompt_tokens
        style = _style(by, turn, place, versions)
        for number, part in enumerate(safe(piece).split("\n")):
            if number:
                line.append("↵", "dim")
                yield line
                line = Text()
            line.append(part, style if sampled else _PROMPT)
    if line:
        yield line


def _style(by: By, turn: ShownTurn, place: int, versions: list[int]) -> str:
    tokens = turn.tokens
    match by:
        case By.LOGPROB:
            return next((style for least, style in _LOGPROBS if tokens.logprobs[place] >= least), _UNLIKELY)
        case By.VERSION:
            version = tokens.versions[place]
            return _VERSIONS[versions.index(version) % len(_VERSIONS)] if version >= 0 else _PROMPT
        case By.MASK:
            return "green" if tokens.loss_mask[place] else "red"
        case By.MISMATCH:
            ours = tokens.annotations.get(TRAINERS)
            said = None if ours is None else ours[place]
            return _PROMPT if said is None else _by_distance(abs(said - tokens.logprobs[place]))


def _by_distance(distance: float) -> str:
    return next((style for most, style in _MISMATCHES if distance <= most), _UNLIKELY)


def _legend(by: By, versions: list[int]) -> Text:
    match by:
        case By.LOGPROB:
            named = [(f"≥ {least:g}", style) for least, style in _LOGPROBS] + [("less", _UNLIKELY)]
        case By.VERSION:
            named = [(str(each), _VERSIONS[place % len(_VERSIONS)]) for place, each in enumerate(versions)]
        case By.MASK:
            named = [("trained", "green"), ("not trained", "red")]
        case By.MISMATCH:
            named = [(f"≤ {most:g}", style) for most, style in _MISMATCHES] + [("more", _UNLIKELY)]
    return Text.assemble(
        (f"{by.value}: ", "bold"), *((f"{name}  ", style) for name, style in named), ("prompt", _PROMPT)
    )


def _print_message(console: Console, message: dict[str, Any], *, whole: bool) -> None:
    role = safe(text(message.get("role")))
    style = _ROLES.get(role, "white")
    about = f" {message['tool_call_id']}" if isinstance(message.get("tool_call_id"), str) else ""
    console.print(Text.assemble((role, f"bold {style}"), (safe(about), "dim")))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        console.print(Text(safe(_shortened(_written(reasoning), whole)), "dim italic"), soft_wrap=True)
    content = message.get("content")
    if content:
        console.print(Text(safe(_shortened(_written(content), whole))), soft_wrap=True)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        console.print(Text.assemble(("→ ", "bold yellow"), safe(_shortened(_call(call), whole))), soft_wrap=True)


def _written(content: Any) -> str:
    """A text, or parts of which some are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    texts = [each.get("text") if isinstance(each, dict) else None for each in content]
    parts = zip(content, texts, strict=True)
    return "".join(said if isinstance(said, str) else json.dumps(part, ensure_ascii=False) for part, said in parts)


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return json.dumps(call, ensure_ascii=False)
    arguments = function.get("arguments")
    return f"{function.get('name')}({arguments if isinstance(arguments, str) else json.dumps(arguments)})"


def _name(tool: Any) -> str:
    function = tool.get("function", tool) if isinstance(tool, dict) else tool
    return str(function.get("name")) if isinstance(function, dict) else json.dumps(tool)


def _shortened(said: str, whole: bool) -> str:
    more = len(said) - SHORTENED
    return said if whole or more <= 0 else f"{said[:SHORTENED]}… {more} more characters (--full shows them)"


def _heading(turn: ShownTurn) -> Text:
    """`── turn 3 · turn-5f3a… · 12 + 40 tokens · v7 · 1.2 s (engine 1.1) · reward 1`"""
    versions = [version for version, _ in groupby(turn.tokens.versions) if version >= 0]
    said = [f"turn {turn.number}", turn.turn_id]
    if turn.lineage.kind != "main":
        said.append(f"{turn.lineage.kind} {text(turn.lineage.id)}")
    said.append(f"{turn.prompt_tokens} + {turn.completion_tokens} tokens")
    said += ["v" + ", ".join(map(str, versions))] if versions else []
    said += [_timing(turn.timing)] if turn.timing is not None else []
    said += [f"fork: {reason(turn.branch_reason)}"] if turn.branch_reason else []
    said += [f"reward {turn.reward:g}"] if turn.reward is not None else []
    said += [turn.trajectory_state] if turn.trajectory_state else []
    said += ["not delivered"] if not turn.delivered else []
    return Text(safe("── " + " · ".join(said)), "bold")


def _timing(timing: TurnTiming) -> str:
    steps = timing.model_dump()
    slow = ", ".join(f"{name} {seconds:.2f}" for name, seconds in steps.items() if seconds >= 0.01)
    return f"{sum(steps.values()):.2f} s" + (f" ({slow})" if slow else "")
