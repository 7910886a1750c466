"""`tool_choice` and `parallel_tool_calls` as the OpenAI API has them. Pure."""

from __future__ import annotations

from typing import Any

from rolloutfleet_proxy.dialects.mistakes import text_of
from rolloutfleet_proxy.dialects.tool_choice import AUTO, NONE, REQUIRED, Choice, Tool, chosen, names_of
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter


def choice_of(tool_choice: Any, parallel: bool | None, tools: list[Tool]) -> Choice:
    """Raises InvalidRequest that names the field at fault: a choice names declared tools alone, as the API has it."""
    mode, names = _mode_and_names(tool_choice, tools)
    return chosen(tools, mode, names, single="parallel_tool_calls" if parallel is False else None)


def named_function(owner: dict[str, Any], *, of: str, at: str) -> dict[str, Any]:
    """The function that a tool or a call of one names."""
    function = owner.get("function")
    if function is None:
        raise MissingParameter(at)
    if type(function) is not dict:
        raise InvalidParameter(at, f"A {of}'s function is an object.")
    text_of(function, "name", at=at, rule="A function's name is a string.")
    return function


def _mode_and_names(choice: Any, tools: list[Tool]) -> tuple[str, frozenset[str] | None]:
    """auto, none or required, and the functions that it leaves; None for all."""
    if choice is None:
        return AUTO, None
    if type(choice) is str and choice in (AUTO, NONE, REQUIRED):
        return choice, None
    kind: str | None = choice.get("type") if type(choice) is dict else None
    if kind == "function":
        return REQUIRED, frozenset([_declared(choice, names_of(tools), at="tool_choice")])
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools"), tools, at="tool_choice.allowed_tools")
    if kind is not None and type(kind) is str:
        raise UnsupportedParameter("tool_choice.type", "only functions can be called.")
    raise InvalidParameter("tool_choice", "tool_choice is auto, none, required, a function, or allowed_tools.")


def _allowed(allowed: Any, tools: list[Tool], *, at: str) -> tuple[str, frozenset[str] | None]:
    if type(allowed) is not dict or type(allowed.get("tools")) is not list:
        raise InvalidParameter(at, "It is an object with a mode and a list of tools.")
    mode = allowed.get("mode")
    if mode not in (AUTO, REQUIRED):
        raise InvalidParameter(f"{at}.mode", "A mode is auto or required.")
    names, declared = [], names_of(tools)
    for index, tool in enumerate(allowed["tools"]):
        if type(tool) is not dict:
            raise InvalidParameter(f"{at}.tools[{index}]", "A tool is an object.")
        names.append(_declared(tool, declared, at=f"{at}.tools[{index}]"))
    if mode == REQUIRED and not names:
        raise InvalidParameter(f"{at}.tools", "A call is required, and no tool is allowed: list one, or use mode auto.")
    everything = declared <= set(names)
    return mode, None if everything else frozenset(names)


def _declared(choice: dict[str, Any], names: set[str], *, at: str) -> str:
    name: str = named_function(choice, of="choice", at=f"{at}.function")["name"]
    if name not in names:
        raise InvalidParameter(f"{at}.function.name", "No tool of that name is declared.")
    return name
