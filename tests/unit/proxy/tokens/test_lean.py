"""Formats are loaded by their names, without what else `renderers` would load."""

import pytest
import renderers
import renderers.base

from rolloutfleet_proxy.tokens.quirks import create_renderer


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
