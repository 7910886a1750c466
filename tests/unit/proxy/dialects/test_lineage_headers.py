"""What the headers of agents' clients say about who makes a call."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.wire import LineageKind
from rolloutfleet_proxy.dialects import lineage_headers as named
from rolloutfleet_proxy.dialects.lineage_headers import Said, lineage_of, read_lineage
from rolloutfleet_proxy.domain import lineage
from rolloutfleet_proxy.domain.lineage import LABEL_LENGTH, MAIN, Lineage, Lineages

TURN = '{"session_id":"s","request_kind":"turn","workspaces":{"/caf\xc3\xa9":{}}}'
COMPACTION = '{"session_id":"s","request_kind":"compaction"}'
MEMORY = '{"request_kind":"memory"}'
SUBAGENT = {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s", "x-openai-subagent": "collab_spawn"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, MAIN),
        ({"authorization": "Bearer k", "x-claude-code-session-id": "u"}, MAIN),
        ({"session-id": "s", "thread-id": "s"}, MAIN),
        ({"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": TURN}, MAIN),
        ({"x-claude-code-request-class": "main"}, MAIN),
        ({"x-claude-code-agent-id": ""}, MAIN),
        ({"x-claude-code-agent-id": "a1"}, Lineage("a1", "subagent", "main")),
        ({"x-claude-code-agent-id": "a2", "x-claude-code-parent-agent-id": "a1"}, Lineage("a2", "subagent", "a1")),
        (
            {"x-claude-code-agent-id": "a1", "x-claude-code-request-class": "workflow"},
            Lineage("a1", "subagent", "main"),
        ),
        ({"x-claude-code-request-class": "compaction"}, Lineage(None, "compaction", "main")),
        (
            {"x-claude-code-request-class": "compaction", "x-claude-code-agent-id": "a1"},
            Lineage("a1", "compaction", "a1"),
        ),
        ({"x-claude-code-request-class": "auxiliary"}, Lineage(None, "other", "main")),
        (SUBAGENT, Lineage("t", "subagent", "main")),
        (SUBAGENT | {"x-codex-parent-thread-id": "u"}, Lineage("t", "subagent", "u")),
        (SUBAGENT | {"x-openai-subagent": "review"}, Lineage("t", "subagent", "main")),
        (SUBAGENT | {"x-openai-subagent": "compact"}, Lineage("t", "compaction", "main")),
        (SUBAGENT | {"x-openai-subagent": "memory_consolidation"}, Lineage("t", "other", "main")),
        (SUBAGENT | {"x-codex-turn-metadata": COMPACTION}, Lineage("t", "compaction", "t")),
        (
            {"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": COMPACTION},
            Lineage("s", "compaction", "main"),
        ),
        ({"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": MEMORY}, Lineage("s", "other", "main")),
        ({"session-id": "s", "thread-id": "t"}, Lineage("t", "other")),
        ({"thread-id": "t"}, Lineage("t", "other")),
    ],
)
def test_who_makes_a_call(headers: dict[str, str], expected: Lineage) -> None:
    assert read_lineage(headers) == lineage_of(headers, Lineages()) == Said(expected)


@pytest.mark.parametrize("name", ["a" * (LABEL_LENGTH + 1), "a\tb", "caf\xe9", "\x00"])
def test_a_name_that_can_not_be_kept_is_left_out_and_its_header_named(name: str) -> None:
    assert read_lineage({"x-claude-code-agent-id": name}) == Said(
        Lineage(None, "subagent", "main"), ("x-claude-code-agent-id",)
    )
    assert read_lineage(SUBAGENT | {"x-codex-parent-thread-id": name}) == Said(
        Lineage("t", "subagent"), ("x-codex-parent-thread-id",)
    )
    assert read_lineage({"session-id": name, "thread-id": name}) == Said(MAIN), "it is compared, and not kept"


def test_the_longest_name_is_kept() -> None:
    name = "~ " * (LABEL_LENGTH // 2)
    assert read_lineage({"x-claude-code-agent-id": name}).lineage.id == name


@pytest.mark.parametrize("metadata", ["", "{", "[]", '{"request_kind": 3}', "[" * 60_000, "caf\xe9"])
def test_metadata_that_can_not_be_read_says_nothing(metadata: str) -> None:
    unusable = ("x-codex-turn-metadata",) if metadata else ()
    assert read_lineage({"x-codex-turn-metadata": metadata}) == Said(MAIN, unusable)


def test_one_lineage_too_many_is_known_by_its_kind_and_its_headers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "LINEAGES", 2)
    known = Lineages()
    assert lineage_of(SUBAGENT, known).unusable == (), "what is only asked takes no place"
    known.take_in(lineage_of({"x-claude-code-agent-id": "a1"}, known).lineage)
    assert lineage_of(SUBAGENT, known) == Said(Lineage(None, "subagent"), ("thread-id", "x-codex-parent-thread-id"))
    assert lineage_of({"x-claude-code-agent-id": "a1"}, known) == Said(Lineage("a1", "subagent", "main"))


texts = st.text(st.characters(max_codepoint=255), max_size=140)
words = st.sampled_from(["compaction", "compact", "subagent", "collab_spawn", "auxiliary", "s", "{}", COMPACTION])


@given(st.dictionaries(st.sampled_from(sorted(named._HEADERS | {named.SESSION})), texts | words))
def test_whatever_the_headers_are_the_labels_keep_to_their_bounds(headers: dict[str, str]) -> None:
    said = read_lineage(headers)
    assert said.lineage.kind in get_args(LineageKind)
    assert (said.lineage.kind == "main") == (said.lineage == MAIN)
    for name in (said.lineage.id, said.lineage.parent):
        assert name is None or (0 < len(name) <= LABEL_LENGTH and name.isascii() and name.isprintable())
    assert set(said.unusable) <= set(headers)
