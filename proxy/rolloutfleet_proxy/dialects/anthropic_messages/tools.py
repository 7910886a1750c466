"""`tools` and `tool_choice` -> functions as the chat formats take them, and what calls a reply may make. Pure.

Tools that Anthropic's servers run (`web_search_…`, `code_execution_…`) are left out, and named. Tools that the caller
runs, but whose schema Anthropic's models alone know (`bash_…`, `text_editor_…`), are refused: here nobody would call
them.
"""

from __future__ import annotations

from typing import Any, Final

from rolloutfleet_proxy.dialects.anthropic_messages.notes import Notes
from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.dialects.mistakes import text_of
from rolloutfleet_proxy.dialects.tool_choice import AUTO, NONE, REQUIRED, Choice, Tool, chosen, names_of
from rolloutfleet_proxy.domain.errors import InvalidParameter, MissingParameter, UnsupportedParameter

SINGLE: Final = "tool_choice.disable_parallel_tool_use"

_KNOWN = frozenset(("type", "name", "description", "input_schema", "strict"))
"""`strict` enforces nothing, as in the other APIs: it is told to the model by formats that write declarations whole."""
_CHOICE = frozenset(("type", "name", "disable_parallel_tool_use"))
_RUN_BY_CALLERS = ("bash_", "text_editor_", "computer_", "memory_", "browser_")
_MODES = {"auto": AUTO, "any": REQUIRED, "tool": REQUIRED, "none": NONE}


def functions(tools: list[dict[str, Any]], notes: Notes) -> list[Tool]:
    """Raises InvalidRequest that names the field at fault."""
    made = []
    for index, tool in enumerate(tools):
        at, kind = f"tools[{index}]", tool.get("type")
        if kind is None or kind == "custom":
            made.append(_function(tool, notes, at=at))
        elif type(kind) is not str:
            raise InvalidParameter(f"{at}.type", "A tool's type is a string.")
        elif kind.startswith(_RUN_BY_CALLERS):
            raise UnsupportedParameter(
                f"{at}.type",
                f"the model doesn't know the schema of {kind[:40]!r}: declare a tool with a name and an input_schema.",
            )
        else:
            notes.ignored.append(f"{at}.{kind}")
    return made


def _function(tool: dict[str, Any], notes: Notes, *, at: str) -> Tool:
    notes.others(tool, _KNOWN, at=at)
    name = text_of(tool, "name", at=at, rule="A tool's name is a string.")
    description, schema = tool.get("description"), tool.get("input_schema")
    if not isinstance(description, str | None):
        raise InvalidParameter(f"{at}.description", "A tool's description is a string.")
    if schema is None:
        raise MissingParameter(f"{at}.input_schema")
    if type(schema) is not dict:
        raise InvalidParameter(f"{at}.input_schema", "A tool's input_schema is a JSON schema.")
    check_depth(schema, at=f"{at}.input_schema")
    described = {} if description is None else {"description": description}
    strict = {"strict": tool["strict"]} if isinstance(tool.get("strict"), bool) else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": schema, **strict}}


def choice_of(
    tool_choice: dict[str, Any] | None, given: list[dict[str, Any]], tools: list[Tool], notes: Notes
) -> Choice:
    """The choice among the tools that are given, of which `tools` are those that are functions here.

    Raises InvalidRequest that names the field at fault: a choice names declared tools alone, as the API has it.
    """
    if tool_choice is None:
        return Choice(shown=tools or None)
    notes.others(tool_choice, _CHOICE, at="tool_choice")
    kind, single = tool_choice.get("type"), tool_choice.get("disable_parallel_tool_use")
    if type(kind) is not str or kind not in _MODES:
        raise InvalidParameter("tool_choice.type", "It is auto, any, tool or none.")
    if not isinstance(single, bool | None):
        raise InvalidParameter(SINGLE, "It is true or false.")
    names = _chosen(tool_choice.get("name"), given, tools) if kind == "tool" else None
    return chosen(tools, _MODES[kind], names, single=SINGLE if single else None)


def _chosen(name: Any, given: list[dict[str, Any]], tools: list[Tool]) -> frozenset[str]:
    """The function of that name; none for a tool that was left out."""
    if name is None:
        raise MissingParameter("tool_choice.name")
    if type(name) is not str or all(tool.get("name") != name for tool in given):
        raise InvalidParameter("tool_choice.name", "No tool of that name is declared.")
    return frozenset({name} & names_of(tools))
