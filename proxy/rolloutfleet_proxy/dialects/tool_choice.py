"""The calls that a reply may make, and how far a grammar can hold it to that. Pure."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from rolloutfleet_proxy.dialects.base import HeldCalls, Reading
from rolloutfleet_proxy.engine.generation import JSON_SCHEMA, grammar_of
from rolloutfleet_proxy.tokens.call_syntax import WRITABLE_NAME
from rolloutfleet_proxy.tokens.reply_grammar import MOST_FUNCTIONS, PARAMETER_NAME, Function, Wanted
from rolloutfleet_proxy.tokens.tool_schemas import arguments_schemas

AUTO: Final = "auto"
NONE: Final = "none"
REQUIRED: Final = "required"

Tool = dict[str, Any]
"""A function, as the chat formats take it (`base.TurnRequest.template`)."""


class Choice(Struct, frozen=True, kw_only=True):
    """What a request says of its calls."""

    shown: list[Tool] | None = None
    """The tools that the model is told of; None for none."""
    required: bool = False
    """A call must come."""
    wanted: Wanted | None = None
    """As a grammar can hold a reply to it; None where nothing is asked for, or no grammar can."""
    wishes: tuple[str, ...] = ()
    """The fields that are without effect where no grammar holds."""


def names_of(tools: list[Tool]) -> set[str]:
    """The names by which the model knows them."""
    return {tool["function"]["name"] for tool in tools}


def chosen(tools: list[Tool], mode: str, names: frozenset[str] | None, *, single: str | None) -> Choice:
    """The choice of one of the modes above, and of the declared functions that it leaves, None for all. `single` is the
    field that allows one call at the most, if one does."""
    if mode == NONE:
        return Choice()
    required = mode == REQUIRED
    if not tools:
        return Choice(required=required, wishes=("tool_choice",) if required else ())
    one = () if single is None else (single,)
    choice = () if mode == AUTO and names is None else ("tool_choice",)
    if not choice and not one:
        return Choice(shown=tools)
    wanted = _wanted(tools, names, required=required, single=single is not None)
    return Choice(shown=tools, required=required, wanted=wanted, wishes=(*choice, *one))


def held_calls(choice: Choice, sampling: dict[str, Any], reading: Reading, ignored: list[str]) -> HeldCalls | None:
    """What the reply's calls are held to; None where a grammar of the request's own holds the whole reply. JSON holds
    its text: where no call must come, a reply is calls or JSON."""
    own, wanted, wishes = grammar_of(sampling), choice.wanted, choice.wishes
    if own == JSON_SCHEMA and choice.shown and not choice.required:
        if not wishes:
            wanted = _wanted(choice.shown, None, required=False, single=False)
        wishes = ("tools",)  # Held to JSON alone, a model can call none.
    if wanted is not None and reading.holds_calls and own in (None, JSON_SCHEMA):
        return HeldCalls(wanted=wanted, wishes=wishes)
    ignored += wishes
    return None


def _wanted(tools: list[Tool], names: frozenset[str] | None, *, required: bool, single: bool) -> Wanted | None:
    """None where a function or what it requires can't be written in a grammar, or they are too many for one."""
    left = {tool["function"]["name"]: tool["function"] for tool in tools}
    if names is not None:
        left = {name: function for name, function in left.items() if name in names}
    if len(left) > MOST_FUNCTIONS or (required and not left):
        return None
    schemas = arguments_schemas([function.get("parameters") for function in left.values()])
    needed = [name for schema in schemas for name in schema.get("required", ())]
    if not all(map(WRITABLE_NAME.fullmatch, left)) or not all(map(PARAMETER_NAME.fullmatch, needed)):
        return None
    functions = tuple(map(Function, left, schemas))
    return Wanted(functions=functions, required=required, single=single)
