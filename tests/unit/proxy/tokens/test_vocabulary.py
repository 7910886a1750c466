"""Text and tokens: decoding by bytes is the tokenizer's own, and packing is invisible to every parser."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.model_files import ChatTemplate, ModelFiles, TemplateRefusal
from rolloutfleet_proxy.tokens.vocabulary import Packed, Vocabulary

LOOKS_AT_TEXT = {"gemma4"}
"""Formats whose parser looks at ordinary tokens too (`quirks`), so that theirs are not packed."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(model_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(ModelFiles(name="small", tokenizer=tokenizer))


@given(ids=st.lists(st.integers(0, 2100), max_size=30))
def test_decoding_is_the_tokenizers_own(tokenizer: Tokenizer, vocabulary: Vocabulary, ids: list[int]) -> None:
    assert vocabulary.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    assert vocabulary.decode(vocabulary.packed(ids)) == vocabulary.decode(ids)


@given(text=st.text(max_size=60))
def test_encoding_is_the_tokenizers_own(tokenizer: Tokenizer, vocabulary: Vocabulary, text: str) -> None:
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert vocabulary.encode(text) == expected
    changed = vocabulary.encode(text)
    changed.append(0)
    assert vocabulary.encode(text) == expected


@pytest.mark.parametrize("strip", [True, False])
def test_a_vocabulary_of_words_and_bytes(strip: bool) -> None:
    """As SentencePiece models write it: spaces as U+2581, rare characters as single bytes."""
    words = ["\u2581Hello", "\u2581there", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    vocabulary = Vocabulary(ModelFiles(name="words", tokenizer=tokenizer))
    assert vocabulary.decodes_by_bytes
    for ids in ([0, 1, 2], [2, 0], [0, *(3 + byte for byte in "é🙂".encode()), 1]):
        assert vocabulary.decode(ids) == tokenizer.decode(ids)
        assert vocabulary.decode(vocabulary.packed(ids)) == tokenizer.decode(ids)


def test_a_run_is_no_token(vocabulary: Vocabulary) -> None:
    run = Packed(vocabulary.encoded("abc"))
    assert run not in vocabulary.marks
    assert run != 0
    assert vocabulary.decode([run, run]) == "abcabc"


def test_ids_outside_the_vocabulary_say_nothing(vocabulary: Vocabulary) -> None:
    assert vocabulary.token_bytes(10**6) == vocabulary.token_bytes(-5) == b""
    inside = vocabulary.encode("inside", add_special_tokens=False)
    [run] = vocabulary.packed([10**6, *inside, 2**31 - 1, -5])
    assert vocabulary.decode([run]) == "inside"


class TestTemplates:
    def test_what_templates_may_use(self) -> None:
        source = (
            "{{ bos_token }}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
            "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}{{ mood }}"
        )
        template = ChatTemplate(source, tokens={"bos_token": "<s>"})
        messages = [{"role": "user", "content": text} for text in ("é<", "b", "c")]
        assert template.render(messages, mood="odd") == '<s>"é<""b"odd'

    def test_it_is_a_sandbox(self) -> None:
        with pytest.raises(ValueError, match="fails"):
            ChatTemplate("{{ messages.__class__.__mro__ }}").render([])
        with pytest.raises(ValueError, match="fails"):
            ChatTemplate("{{ messages.append(1) }}").render([])

    @pytest.mark.parametrize("source", ["{{ messages[0].x.y }}", "{{ 1 + 'a' }}", "{{ messages[0].x() }}"])
    def test_what_goes_wrong_is_one_error_without_the_librarys_words(self, source: str) -> None:
        with pytest.raises(ValueError, match=r"^the model's chat template fails$"):
            ChatTemplate(source).render([{}])

    def test_what_a_template_says_itself_is_passed_on(self) -> None:
        with pytest.raises(TemplateRefusal, match="with the words 'Roles must alternate'"):
            ChatTemplate("{{ raise_exception('Roles must alternate.') }}").render([{}])


def test_an_id_below_zero_stands_for_nothing_and_hides_no_packed_run(vocabulary: Vocabulary) -> None:
    assert vocabulary.token_bytes(-1) == b""
    assert vocabulary.token_bytes(Packed(array("i", vocabulary.encode("packed")))) == b"packed"
