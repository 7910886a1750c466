"""What a model's own template has no form for is named by its path, wherever it is rendered."""

from pathlib import Path

import pytest
from tests.chat_formats import helped_from
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.domain.messages import NO_ARGS, Message
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

LONG = 20_000
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.content }}{% if m.mood %}{{ m.mood.of.x }}{% endif %}<|im_end|>"
    "{% endfor %}<|im_start|>"
)
SAID: Message = {"role": "assistant", "content": "Yes."}
MOODY: Message = {"role": "user", "content": "Hello?", "mood": {"a": 1}}


@pytest.mark.parametrize("length", [1, LONG + 1], ids=["here", "in the helper process"])
async def test_it_is_named_wherever_it_is_rendered(
    tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped_from(LONG, monkeypatch)
    write_model(tmp_path, FAMILIES["qwen3"], config={"model_type": "of its own"})
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    source = ModelSource(str(tmp_path))
    tokenizing = Tokenizing(source.load(), source)
    try:
        with pytest.raises(Unrenderable) as caught:
            await tokenizing.prompt([{"role": "user", "content": "x" * length}, SAID, MOODY], NO_ARGS, [])
        assert caught.value.param == "messages[2].mood"
        assert (tokenizing._helper.pid is not None) == (length > LONG)
    finally:
        await tokenizing.close()
