"""What a proxy does not load, and what it does not start."""

import pytest
import renderers
import renderers.base
from tests.apart import run

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.tokens.quirks import create_renderer


def test_a_proxy_loads_no_client_of_inference_servers() -> None:
    assert run("import rolloutfleet_proxy.worker, renderers", "print('openai' in sys.modules)") == ["False"]


def test_a_proxy_loads_its_own_models_format_alone() -> None:
    loaded = run(
        "import renderers",
        "from rolloutfleet_proxy.tokens.loading import load",
        "import rolloutfleet_proxy.worker",
        "before = set(sys.modules)",
        f"assert load({str(model_path())!r}).name == 'qwen3'",
        "print(*(name for name in set(sys.modules) - before if name.startswith(('renderers.', 'openai'))))",
    )
    assert loaded == ["renderers.qwen3"]


def test_each_format_is_the_one_that_renderers_gives_for_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found by how their classes are named."""
    renderers.base._populate_registry()
    made: list[type] = []

    def note(self: object, tokenizer: object, config: object) -> None:
        made.append(type(self))

    for format_class in renderers.base.RENDERER_REGISTRY.values():
        monkeypatch.setattr(format_class, "__init__", note)
    for name in renderers.base.RENDERER_REGISTRY:
        create_renderer(object(), renderers.config_from_name(name))
    assert made == list(renderers.base.RENDERER_REGISTRY.values())


def test_a_name_that_leads_to_no_class_is_left_to_renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderers, "create_renderer", lambda tokenizer, config: (tokenizer, config))
    automatic = renderers.AutoRendererConfig()
    assert create_renderer("a tokenizer", automatic) == ("a tokenizer", automatic)
