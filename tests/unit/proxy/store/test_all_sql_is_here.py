"""All SQL of the proxy is in its store: no other module holds a statement, and one says that a session was touched."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import rolloutfleet_proxy

PROXY = Path(rolloutfleet_proxy.__file__).parent

STATEMENT = re.compile(
    r"\bSELECT\s[\s\S]*\bFROM\b|\bSELECT\s+\d|\bINSERT\s+(OR\s+\w+\s+)?INTO\b|\bUPDATE\s+\w+\s+SET\b|\bDELETE\s+FROM\b"
    r"|\b(CREATE|DROP|ALTER)\s+(TABLE|INDEX|TRIGGER)\b|\bPRAGMA\s+\w|\bBEGIN IMMEDIATE\b|\bSAVEPOINT\b"
    r"|\b(FROM|JOIN)\s+\w+\s+(WHERE|ON|JOIN|ORDER)\b|\bWHERE\s+\w+\s*(=|IN|IS|<|>)"
)


def strings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every string, of an f-string without what it fills in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "x".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@functools.cache
def statements() -> dict[Path, list[tuple[int, str]]]:
    found = {
        file: [each for each in strings(file.read_text()) if STATEMENT.search(each[1])] for file in PROXY.rglob("*.py")
    }
    return {file.relative_to(PROXY): held for file, held in found.items() if held}


def test_nobody_but_the_store_holds_a_statement() -> None:
    outside = {file: held for file, held in statements().items() if file.parts[0] != "store"}
    assert outside == {}
    assert len(statements()) > 10, "a statement is known as one"


def test_one_function_says_that_a_session_was_touched() -> None:
    written = {
        str(file): [text for _, text in held if re.search(r"\btouched\s*=", text.partition("WHERE")[0])]
        for file, held in statements().items()
    }
    assert {file: len(texts) for file, texts in written.items() if texts} == {"store/sessions.py": 1}
