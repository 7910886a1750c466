"""The quick encoder gives the ids that `tokenizers` gives, and is not asked where it might not."""

from __future__ import annotations

import base64
import json
import random
from array import array
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.tokens.models.families import FAMILIES, PHRASES, tokenizer_of
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.encoding import CHECK_EVERY, Encoding, EncodingThread, _fastokens

pytest.importorskip("fastokens")

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_NO_LETTER = r"[^\r\n\p{L}\p{N}]?"

# How published tokenizers cut text into words.
PATTERNS = {
    "qwen": [rf"{_CONTRACTIONS}|{_NO_LETTER}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"],
    "qwen with marks": [
        rf"{_CONTRACTIONS}|{_NO_LETTER}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_END}"
    ],
    "llama": [rf"{_CONTRACTIONS}|{_NO_LETTER}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_END}"],
    "o200k": [
        rf"{_NO_LETTER}{_CASED}{_CONTRACTIONS}?|{_NO_LETTER}{_UPPER}{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_END}"
    ],
    "deepseek": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_END}",
    ],
}

TRAINED_ON = [
    *PHRASES,
    "It's WASN'T I'll they've You'd 12345 2026-11-21 x=y+1; // HTTPServer snake_case camelCase\r\n\t  \n\n   end",
    "日本語のテキスト 中文字符测试 한국어 텍스트 العربية ٣٤٥ हिन्दी ไทย Ελληνικά Русский Ⅷ ² ½ e\u0301 “quoted” — …",
]


@cache
def trained(name: str) -> Tokenizer:
    """A small tokenizer that cuts words as the published one of this name does."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in ("llama", "o200k")))
    if name.startswith("qwen"):
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PATTERNS[name]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINED_ON * 3, trainer)
    tokenizer.add_tokens([AddedToken("<|im_end|>", special=True, normalized=False), AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if name == "llama":
        begin = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", begin)])
    return tokenizer


def tokenizer_named(name: str) -> Tokenizer:
    if name == "shipped":
        return Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    return trained(name) if name in PATTERNS else tokenizer_of(FAMILIES[name])


@pytest.mark.parametrize("name", ["shipped", *PATTERNS, *FAMILIES])
def test_the_ids_are_those_of_tokenizers(name: str) -> None:
    tokenizer = tokenizer_named(name)
    encoding = Encoding(tokenizer)
    assert encoding.quick
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    words = ["'s", "'LL", " The", "the", "12", "345", "\n", "\r\n", "  ", "\t", "\u00a0", "é", "e\u0301", "中文", "🙂"]
    said = ["It was warm", "don't", '{"n": 1}', "def f(x):\n    return x", *TRAINED_ON, *words]
    pieces = st.one_of(st.text(max_size=20), st.sampled_from(said), st.sampled_from(added), st.sampled_from(words))

    # Those of families differ in their added tokens alone.
    @settings(deadline=None, max_examples=50 if name in FAMILIES else 150)
    @given(st.lists(pieces, max_size=12).map("".join))
    def check(text: str) -> None:
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert encoding.ids(text).tolist() == expected
        # And the quick one itself, which some texts above never reach.
        if encoding.quick is not None and not set(text) & set("\u017f\u212a\u180e"):
            assert ids_of(encoding.quick(text)) == expected

    check()


@pytest.mark.parametrize("text", ["'\u017f and more", "  \u180e", "\u212aelvin"])
def test_what_they_may_differ_on_is_left_to_tokenizers(text: str) -> None:
    tokenizer = trained("o200k")
    encoding = Encoding(tokenizer)
    encoding.quick = EncodingThread(_fastokens(tokenizer_named("shipped")))  # whatever it says would be wrong
    assert encoding.ids(text).tolist() == tokenizer.encode(text).ids


def ids_of(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


@cache
def long_texts() -> dict[str, str]:
    """What tools print, longer than what `fastokens` would by itself encode in one go."""
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(1, 12))) for _ in range(12_000)]
    return {
        "words": " ".join(words),
        "one word": "".join(words),
        "base64": base64.b64encode(draw.randbytes(60_000)).decode(),
        "JSON": json.dumps([[draw.random() for _ in range(10)] for _ in range(400)]),
        "Chinese": "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(80_000)),
        "spaces": " " * 80_000,
        "mixed": "".join(draw.choices([*PHRASES, *TRAINED_ON, "  ", "\n", "'s", "🙂", "<|im_end|>"], k=1_700)),
    }


@pytest.mark.parametrize("name", ["shipped", *PATTERNS])
def test_the_ids_of_long_texts_are_those_of_tokenizers(name: str) -> None:
    tokenizer = tokenizer_named(name)
    quick = _fastokens(tokenizer)
    for kind, text in long_texts().items():
        assert ids_of(quick(text)) == tokenizer.encode(text, add_special_tokens=False).ids, kind


@pytest.mark.parametrize("error", [ValueError("the match limit was reached"), BaseException("a panic")])
def test_a_text_that_fastokens_fails_on_is_left_to_tokenizers(error: BaseException) -> None:
    tokenizer = trained("qwen")
    encoding = Encoding(tokenizer)
    assert encoding.quick is not None

    def fail(text: str) -> bytes:
        raise error

    quick, encoding.quick = encoding.quick, EncodingThread(fail)
    assert encoding.ids("It was warm.").tolist() == tokenizer.encode("It was warm.").ids
    encoding.quick = quick
    assert encoding.ids("It was cold.").tolist() == tokenizer.encode("It was cold.").ids
    assert encoding.quick


@pytest.mark.parametrize("times", [1, 1000], ids=["short", "long"])
def test_after_a_difference_tokenizers_alone_is_used(times: int) -> None:
    """They are compared every so often: here the quick one has another vocabulary."""
    tokenizer = trained("qwen")
    encoding = Encoding(tokenizer)
    encoding.quick = EncodingThread(_fastokens(tokenizer_named("shipped")))
    texts = [f"It was warm in Oslo, {number} times." for number in range(CHECK_EVERY - 1)]
    texts.append("It was warm in Oslo too." * times)
    answers = [encoding.ids(text).tolist() for text in texts]
    assert answers[-1] == tokenizer.encode(texts[-1]).ids
    assert not encoding.quick
    assert [encoding.ids(text).tolist() for text in texts] == [tokenizer.encode(text).ids for text in texts]


def test_a_tokenizer_that_the_quick_one_cannot_read_is_read_by_tokenizers() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    encoding = Encoding(tokenizer)
    assert not encoding.quick
    assert encoding.ids("a b c").tolist() == [0, 1, 2]


def test_a_tokenizer_that_they_read_differently_is_read_by_tokenizers() -> None:
    """A file that one of them reads otherwise than the other: the passages at the start tell."""
    changed = json.loads(trained("qwen").to_str())
    changed["model"]["merges"] = changed["model"]["merges"][::-1]
    other = Tokenizer.from_str(json.dumps(changed))

    class ReadAsAnother:
        encode_batch_fast = other.encode_batch_fast
        to_str = trained("qwen").to_str

    assert Encoding(cast(Any, ReadAsAnother())).quick is None
