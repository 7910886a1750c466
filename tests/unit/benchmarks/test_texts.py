"""The stub's replies are what the model could have said, and requests come out as long as they are meant to be."""

import json
from pathlib import Path

from benchmarks.rigs import texts
from benchmarks.rigs.load import MEAN_REQUEST_BYTES, Workload
from benchmarks.rigs.model import write_model
from tokenizers import Tokenizer

from rolloutfleet_engine.model import model_path


def test_ids_decode_to_the_text_and_end_the_turn(tmp_path: Path) -> None:
    made = texts.write(tmp_path, model=model_path(), name="bench", tokens=200, variants=8)
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    replies = json.loads(made.replies.read_text())
    assert len(replies["variants"]) == 8
    for reply in replies["variants"]:
        assert reply["ids"][-1] == replies["stop"] == tokenizer.token_to_id("<|im_end|>")
        assert tokenizer.decode(reply["ids"][:-1]) == reply["text"] == reply["text"].strip()
        assert 150 < len(reply["ids"]) <= 240
        assert "".join(reply["tokens"][:-1]) == reply["text"]


def test_requests_are_24_kib_on_average(tmp_path: Path) -> None:
    made = texts.write(tmp_path, model=model_path(), name="bench")
    workload = Workload.of_mean(made)
    first = workload.shared + workload.task
    bodies = [first + turn * (made.reply_bytes + workload.message) for turn in range(workload.turns)]
    assert abs(sum(bodies) / len(bodies) - MEAN_REQUEST_BYTES) < 1500


def test_the_rigs_vocabulary_makes_as_many_tokens_as_published_ones(tmp_path: Path) -> None:
    text = texts.prose()
    tokenizer = Tokenizer.from_file(str(write_model(tmp_path, text=text) / "tokenizer.json"))
    assert 4.0 < 100_000 / len(tokenizer.encode(text[100_000:200_000]).ids) < 4.5
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == tokenizer.get_vocab_size()
