"""A model directory for the rigs: the simulated engine's chat format, with a vocabulary of the size that prompts have.

The shipped model has 2,048 tokens, so that 24 KB of English are 10,500 of them; with a published vocabulary they are
half as many. What gateway and proxy do grows with the tokens, so the rigs train a tokenizer on what will be said, of a
size that makes 4.3 bytes a token, as large vocabularies do for English.
"""

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rolloutfleet_engine import make_model

VOCABULARY_SIZE = 8192


def write_model(folder: Path, *, text: str, context: int = make_model.CONTEXT_LENGTH) -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json to `folder`, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train(text)
    config = make_model.model_config(tokenizer) | {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": context,
    }
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    make_model.write_json(folder / "tokenizer_config.json", make_model.tokenizer_config(tokenizer))
    make_model.write_json(folder / "config.json", config)
    return folder


@cache
def _train(text: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(make_model.WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.split("\n\n"), trainer=trainer)
    added = [AddedToken(token, special=True, normalized=False) for token in make_model.SPECIAL_TOKENS]
    tokenizer.add_special_tokens(added)
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in make_model.TAG_TOKENS])
    return tokenizer
