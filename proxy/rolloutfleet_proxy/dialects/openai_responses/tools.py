"""The tools that a request declares, as the chat formats know them, and which of them may be called. Pure.

A chat format knows functions alone, so that each of the API's tools is one, or nothing:

- a *function* stays one;
- one within a *namespace* is named for both, `namespace__function`;
- a *custom* tool, whose input is any text, is a function with that text as its only argument, `input`. A grammar that
  it declares for its input is told to the model and enforced by nothing;
- *what a server would run* (`web_search`, `mcp`, …) is left out, and named as ignored;
- *what the caller runs, but OpenAI's models alone know how to call* (`local_shell`, `apply_patch`, …) is refused: here
  nobody would call it.

What the model calls goes back as what was declared (`Declared`). A custom call whose arguments are not
`{"input": text}` is handed on with the arguments' own text as its input; its id then ends in `RAW`, so that it can be
read back as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.dialects.depth import check_depth
from rolloutfleet_proxy.dialects.mistakes import kind_of, text_of
from rolloutfleet_proxy.dialects.tool_choice import AUTO, NONE, REQUIRED, Choice, Tool, chosen, names_of
from rolloutfleet_proxy.domain.errors import InvalidParameter, UnsupportedParameter

FUNCTION: Final = "function"
CUSTOM: Final = "custom"
NAMESPACE: Final = "namespace"
INPUT: Final = "input"
"""The argument of the function that a custom tool is."""
RAW: Final = ".raw"

LONGEST_OF_SERVERS: Final = 1 << 20
"""Bytes of all tools together that a server would run: answers repeat them, and no context bounds them."""
_RUN_BY_CALLERS: Final = frozenset({"apply_patch", "computer", "computer_use_preview", "local_shell", "shell"})
_SEPARATOR = "__"
_NEUTRAL = frozenset({"type", "name", "description", "parameters", "strict", "format", "async", "allowed_callers"})


class Declared(Struct, frozen=True, kw_only=True):
    """A tool that the request has otherwise than the model knows it."""

    name: str
    namespace: str | None = None
    custom: bool = False


class Tools(Struct, frozen=True, kw_only=True):
    """What a request declares."""

    functions: list[Tool] = []
    """As chat requests declare them."""
    declared: dict[str, Declared] = {}
    """By the names that the model knows, those that are no plain functions."""


class _Bare(Struct, forbid_unknown_fields=True):
    input: str


_encode = msgspec.json.Encoder().encode
_bare = msgspec.json.Decoder(_Bare).decode


def known_as(name: str, namespace: str | None) -> str:
    """The name by which the model knows a function."""
    if not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith(_SEPARATOR) else _SEPARATOR}{name}"


def arguments_of(custom_input: str) -> str:
    """The arguments of a custom tool's call."""
    return _encode({INPUT: custom_input}).decode()


def custom_input(arguments: str) -> str | None:
    """What a custom tool is called with; None where the model wrote other arguments."""
    try:
        return _bare(arguments).input
    except (ValueError, RecursionError):
        return None


def read_tools(given: Sequence[Any], ignored: list[str]) -> Tools:
    """Raises DomainError that names the field at fault."""
    tools = Tools()
    of_servers = 0
    for index, tool in enumerate(given):
        at = f"tools[{index}]"
        kind = kind_of(tool, what="A tool", at=at)
        check_depth(tool, at=at)  # Answers repeat it.
        if kind == NAMESPACE:
            _read_namespace(tool, tools, ignored, at=at)
        elif kind in (FUNCTION, CUSTOM):
            _read_tool(tool, tools, ignored, namespace=None, at=at)
        elif kind in _RUN_BY_CALLERS and not _has_container(tool):
            raise UnsupportedParameter(
                f"{at}.type", f"the model doesn't know how to call {kind!r}: declare a function or a custom tool."
            )
        else:
            ignored.append(f"{at}.{kind}")
            of_servers += len(_encode(tool))
            if of_servers > LONGEST_OF_SERVERS:
                raise InvalidParameter(at, "Tools that a server would run have 1 MiB at most: leave them out.")
    times = Counter(function["function"]["name"] for function in tools.functions)
    for name in tools.declared:
        if times[name] > 1:
            raise InvalidParameter("tools", f"Two tools are known to the model as {name[:80]!r}: rename one.")
    return tools


def _has_container(tool: Tool) -> bool:
    """True of a shell that a server runs."""
    environment = tool.get("environment")
    return type(environment) is dict and str(environment.get("type")).startswith("container_")


def _read_namespace(space: Tool, tools: Tools, ignored: list[str], *, at: str) -> None:
    name = _name(space, at=at)
    held = space.get("tools")
    if type(held) is not list:
        raise InvalidParameter(f"{at}.tools", "A namespace has a list of tools.")
    if space.get("description"):
        ignored.append(f"{at}.description")
    for index, tool in enumerate(held):
        within = f"{at}.tools[{index}]"
        kind = kind_of(tool, what="A tool", at=within)
        if kind not in (FUNCTION, CUSTOM):
            raise UnsupportedParameter(f"{within}.type", "a namespace holds functions and custom tools.")
        _read_tool(tool, tools, ignored, namespace=name, at=within)


def _read_tool(tool: Tool, tools: Tools, ignored: list[str], *, namespace: str | None, at: str) -> None:
    name, custom = _name(tool, at=at), tool["type"] == CUSTOM
    description = tool.get("description")
    if not isinstance(description, str | None):
        raise InvalidParameter(f"{at}.description", "A tool's description is a string.")
    ignored += [f"{at}.{field}" for field in tool.keys() - _NEUTRAL if tool[field]]
    known = known_as(name, namespace)
    function: Tool = {"name": known}
    if description is not None:
        function["description"] = description
    if custom:
        function["parameters"] = _one_text(tool.get("format"), ignored, at=f"{at}.format")
    else:
        parameters = tool.get("parameters")
        if not isinstance(parameters, dict | None):
            raise InvalidParameter(f"{at}.parameters", "A function's parameters are a JSON schema.")
        if parameters is not None:
            function["parameters"] = parameters
        if isinstance(tool.get("strict"), bool):
            function["strict"] = tool["strict"]
    tools.functions.append({"type": FUNCTION, "function": function})
    if custom or namespace is not None:
        tools.declared[known] = Declared(name=name, namespace=namespace, custom=custom)


def _one_text(form: Any, ignored: list[str], *, at: str) -> dict[str, Any]:
    """The parameters of the function that a custom tool is. Nothing but their description says a grammar."""
    text: dict[str, Any] = {"type": "string"}
    if form is not None and type(form) is not dict:
        raise InvalidParameter(at, "A custom tool's format is an object.")
    if form is not None and form.get("type") == "grammar":
        syntax, definition = form.get("syntax"), form.get("definition")
        if type(syntax) is not str or type(definition) is not str:
            raise InvalidParameter(f"{at}.definition", "A grammar has a syntax and a definition, both text.")
        text["description"] = f"Text of this grammar ({syntax}):\n{definition}"
        ignored.append(f"{at}.type")
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}


def _name(tool: Tool, *, at: str) -> str:
    return text_of(tool, "name", at=at, rule="A tool's name is a string.")


# Which may be called


def read_choice(given: Any, parallel: bool | None, tools: Tools) -> Choice:
    """What a request says of its calls; `given` is its `tool_choice`. Raises InvalidRequest for the field at fault."""
    mode, names = _mode_and_names(given, tools)
    return chosen(tools.functions, mode, names, single="parallel_tool_calls" if parallel is False else None)


def _mode_and_names(given: Any, tools: Tools) -> tuple[str, frozenset[str] | None]:
    """auto, none or required, and the functions that it leaves; None for all."""
    if given is None:
        return AUTO, None
    check_depth(given, at="tool_choice")  # Answers repeat it.
    if type(given) is str and given in (AUTO, NONE, REQUIRED):
        return given, None
    kind = given.get("type") if type(given) is dict else None
    if kind in (FUNCTION, CUSTOM):
        return REQUIRED, frozenset([_chosen(given, names_of(tools.functions), at="tool_choice")])
    if kind == "allowed_tools":
        return _allowed(given, tools)
    if type(kind) is str:
        raise UnsupportedParameter("tool_choice.type", "only functions and custom tools can be called.")
    raise InvalidParameter("tool_choice", "It is auto, none, required, a function, a custom tool, or allowed_tools.")


def _allowed(given: dict[str, Any], tools: Tools) -> tuple[str, frozenset[str] | None]:
    mode, listed = given.get("mode"), given.get("tools")
    if mode not in (AUTO, REQUIRED):
        raise InvalidParameter("tool_choice.mode", "A mode is auto or required.")
    if type(listed) is not list:
        raise InvalidParameter("tool_choice.tools", "It is a list of tools.")
    if mode == REQUIRED and not listed:
        raise InvalidParameter("tool_choice.tools", "A call is required, and no tool is allowed: list one.")
    declared = names_of(tools.functions)
    names = {_chosen(each, declared, at=f"tool_choice.tools[{index}]") for index, each in enumerate(listed)}
    return mode, None if declared <= names else frozenset(names)


def _chosen(given: Any, declared: set[str], *, at: str) -> str:
    """The name by which the model knows a tool, one of those that are declared."""
    kind = kind_of(given, what="A tool", at=at)
    if kind not in (FUNCTION, CUSTOM):
        raise UnsupportedParameter(f"{at}.type", "only functions and custom tools can be called.")
    namespace = given.get("namespace")
    if not isinstance(namespace, str | None):
        raise InvalidParameter(f"{at}.namespace", "A namespace's name is a string.")
    known = known_as(_name(given, at=at), namespace)
    if known not in declared:
        raise InvalidParameter(f"{at}.name", "No tool of that name is declared.")
    return known
