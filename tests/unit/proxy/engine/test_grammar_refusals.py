"""What an engine's refusal of a grammar says of the engines."""

import pytest

from rolloutfleet_proxy.engine.errors import ASKED_AGAIN, GrammarRefused, StructuralTags, engine_failure
from rolloutfleet_proxy.http.errors import status_of

OF_BACKENDS = {
    "none": "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the server is "
    "launched with --grammar-backend none",
    "llguidance": "Failed to compile structural_tag grammar: ",
    "outlines": "Failed to compile structural_tag grammar: Unknown grammar error",
}
OF_ONE = (
    "Failed to compile structural_tag grammar: [08:13:25] /project/cpp/grammar_compiler.cc:1207: Check failed",
    "Grammar preprocessing timed out: req.grammar_key=('structural_tag', '…')",
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(said: str) -> GrammarRefused:
    error = engine_failure(400, said)
    assert isinstance(error, GrammarRefused) and status_of(error) == 400
    return error


@pytest.mark.parametrize("backend", OF_BACKENDS)
def test_engines_that_take_no_grammars_of_calls_are_sent_none_for_a_while(backend: str) -> None:
    clock = Clock()
    grammars = StructuralTags(clock)
    assert grammars.taken()
    for _ in range(2):
        grammars.refused(refusal(OF_BACKENDS[backend]))
        assert not grammars.taken()
        clock.now += ASKED_AGAIN - 1
        assert not grammars.taken()
        clock.now += 1
        assert grammars.taken()


def test_engines_that_take_them_again_are_told_of_anew(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    grammars, refused = StructuralTags(clock), refusal(OF_BACKENDS["none"])
    grammars.refused(refused)
    grammars.answered()
    assert not grammars.taken(), "it was sent before the refusal"
    clock.now += ASKED_AGAIN
    with caplog.at_level("INFO", logger="rolloutfleet.proxy"):
        grammars.answered()
        grammars.refused(refused)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]


@pytest.mark.parametrize("said", OF_ONE)
def test_one_grammar_that_does_not_compile_says_nothing_of_others(said: str) -> None:
    grammars = StructuralTags(Clock())
    grammars.refused(refusal(said))
    assert grammars.taken()


@pytest.mark.parametrize("said", ["top_k must be 1", "The input is longer than the model's context length"])
def test_other_refusals_are_none_of_grammars(said: str) -> None:
    assert not isinstance(engine_failure(400, said), GrammarRefused)
