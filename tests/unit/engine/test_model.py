"""The model that ships: what it holds, and that its other spellings of a text are honest."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_engine.make_model import SPECIAL_TOKENS, TAG_TOKENS, write_model
from rolloutfleet_engine.model import Model, model_path

MODEL = Model(model_path())


class ThinTokenizer:
    """What `renderers` asks of a tokenizer."""

    name_or_path = "Qwen/Qwen3-8B"
    unk_token_id = None

    def __init__(self, model: Model) -> None:
        self._tokenizer = model.tokenizer
        self.eos_token_id = model.token_id("<|im_end|>")

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


def test_the_shipped_files_are_what_the_script_makes(tmp_path: Path) -> None:
    write_model(tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (model_path() / file.name).read_bytes(), file.name


def test_the_vocabulary_is_qwens_in_small() -> None:
    config = json.loads((model_path() / "config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert MODEL.tokenizer.get_vocab_size() == config["vocab_size"] == 2048
    assert (model_path() / "tokenizer.json").stat().st_size < 150_000
    assert MODEL.end_ids == {MODEL.token_id("<|im_end|>"), MODEL.token_id("<|endoftext|>")}
    assert MODEL.special_ids == {MODEL.token_id(token) for token in SPECIAL_TOKENS}
    for token in (*SPECIAL_TOKENS, *TAG_TOKENS):
        assert MODEL.encode(token) == [MODEL.token_id(token)]


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Model(tmp_path)


def test_qwens_renderer_takes_the_tokenizer() -> None:
    from renderers.qwen3 import Qwen3Renderer

    renderer = Qwen3Renderer(ThinTokenizer(MODEL))
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    ids = renderer.render(messages, add_generation_prompt=True).token_ids
    assert MODEL.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n"
    )


@given(text=st.text(), share=st.floats(0, 1), seed=st.integers())
def test_a_split_spelling_has_the_same_text_and_other_ids(text: str, share: float, seed: int) -> None:
    ids = MODEL.encode(text)
    split = MODEL.split_some(ids, share=share, rng=random.Random(seed))
    assert MODEL.decode(split, skip_special_tokens=False) == MODEL.decode(ids, skip_special_tokens=False)
    assert split == ids or MODEL.encode(MODEL.decode(split, skip_special_tokens=False)) != split


@given(ids=st.lists(st.integers(0, 2047)), skip=st.booleans())
def test_decoding_agrees_with_the_tokenizer(ids: list[int], skip: bool) -> None:
    ours = MODEL.decode(ids, skip_special_tokens=skip)
    assert ours == MODEL.tokenizer.decode(ids, skip_special_tokens=skip)
