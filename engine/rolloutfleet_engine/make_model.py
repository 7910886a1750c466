"""Makes the model directory that ships with the simulated engine.

`python -m rolloutfleet_engine.make_model DIR` writes a byte-level BPE of 2,048 tokens with the added tokens of Qwen3,
trained on text that this file generates, and the configuration of a Qwen3 small enough for random weights on a CPU.
The same versions of this file and of `tokenizers` give the same bytes. What is not trained is edited where it is: the
chat template in `chat_template.jinja`, all else in the files of `model/`.

The added tokens, their order and their flags follow the published Qwen3 tokenizer: tool and thinking tags are added
tokens but not special ones, so `skip_special_tokens` leaves them in a text.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rolloutfleet_engine.model import model_path, read_json
from rolloutfleet_engine.phrases import NOUNS, PLACES, SCHEMA_WORDS, VERBS, sentence

VOCABULARY_SIZE = 2048
CONTEXT_LENGTH = 131_072

SHIPPED = read_json(model_path() / "tokenizer_config.json")
"""What is kept of it: the added tokens with their order and flags, and how `transformers` reads them."""
_ADDED = SHIPPED["added_tokens_decoder"].values()
SPECIAL_TOKENS = tuple(token["content"] for token in _ADDED if token["special"])
TAG_TOKENS = tuple(token["content"] for token in _ADDED if not token["special"])

# How Qwen cuts text before merging: contractions, words with at most one leading mark, single digits, runs of marks,
# line breaks, spaces.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TYPES = ("string", "integer", "number", "boolean")


def arguments(rng: random.Random) -> dict[str, object]:
    choices: tuple[object, ...] = (
        rng.randint(0, 500),
        round(rng.random() * 40, 2),
        rng.choice(PLACES),
        rng.random() < 0.5,
        [rng.choice(NOUNS), rng.choice(NOUNS)],
        None,
    )
    return {rng.choice(NOUNS): rng.choice(choices) for _ in range(rng.randint(1, 3))}


def tool(rng: random.Random) -> dict[str, object]:
    properties = {
        rng.choice(NOUNS): {"type": rng.choice(TYPES), "description": sentence(rng)} for _ in range(rng.randint(1, 3))
    }
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    return {"type": "function", "function": {"name": name, "description": sentence(rng), "parameters": parameters}}


def code(rng: random.Random) -> str:
    noun, other, verb = rng.choice(NOUNS), rng.choice(NOUNS), rng.choice(VERBS)
    return (
        f"def {verb}_{noun}({other}: str, count: int = {rng.randint(0, 99)}) -> list[str]:\n"
        f'    """{sentence(rng)}"""\n'
        f"    {noun}s = [item for item in {other}.split() if item != '{noun}']\n"
        f'    if not {noun}s:\n        raise ValueError(f"no {noun} in {{{other}}}")\n'
        f"    return {noun}s[:count]\n"
    )


def conversation(rng: random.Random) -> str:
    """Role names and line breaks as a chat format has them, without the tags, which are tokens of their own."""
    call = json.dumps({"name": f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}", "arguments": arguments(rng)})
    thought = " ".join(sentence(rng) for _ in range(3))
    return (
        f"system\nYou are a helpful assistant. {sentence(rng)}\n\n# Tools\n\nYou may call one or more functions to "
        f"assist with the user query.\n{json.dumps(tool(rng))}\nuser\n{sentence(rng)}\nassistant\n\n{thought}\n\n"
        f"\n{call}\nuser\n\n{json.dumps(arguments(rng))}\nassistant\n{sentence(rng)} {sentence(rng)}\n"
    )


def corpus() -> Iterator[str]:
    rng = random.Random(20251121)
    for _ in range(1500):
        yield " ".join(sentence(rng) for _ in range(4))
        yield conversation(rng)
        yield code(rng)
        yield json.dumps({"content": sentence(rng), "status": "ok", "role": "tool", "details": arguments(rng)})
        yield " ".join(rng.sample(SCHEMA_WORDS, 4))


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(TAG_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer=trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAG_TOKENS])
    return tokenizer


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, object]:
    """The shipped one, with the ids of that tokenizer."""
    shipped = {token["content"]: token for token in _ADDED}
    added = sorted(tokenizer.get_added_tokens_decoder().items())
    return SHIPPED | {
        "added_tokens_decoder": {str(token_id): shipped[token.content] for token_id, token in added},
        "chat_template": Path(__file__).with_name("chat_template.jinja").read_text("utf-8"),
    }


def model_config(tokenizer: Tokenizer) -> dict[str, object]:
    """A Qwen3 of two thin layers: `transformers` and SGLang can make it with random weights."""
    return read_json(model_path() / "config.json") | {
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }


def write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    separators = None if indent else (",", ":")
    path.write_text(json.dumps(value, indent=indent, separators=separators, ensure_ascii=False) + "\n", "utf-8")


def write_model(folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json, config.json and generation_config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    write_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()), indent=None)
    write_json(folder / "tokenizer_config.json", tokenizer_config(tokenizer))
    write_json(folder / "config.json", model_config(tokenizer))
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    write_json(folder / "generation_config.json", {"do_sample": True, "eos_token_id": ends, "temperature": 1.0})


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
