"""What a proxy does not load."""

from tests.apart import run

from rolloutfleet_engine import model_path


def test_a_proxy_loads_no_client_of_inference_servers() -> None:
    assert run("import rolloutfleet_proxy.worker, renderers", "print('openai' in sys.modules)") == ["False"]


def test_a_proxy_loads_its_own_models_format_alone() -> None:
    loaded = run(
        "import renderers",
        "from rolloutfleet_proxy.tokens.loading import ModelSource",
        "import rolloutfleet_proxy.worker",
        "before = set(sys.modules)",
        f"assert ModelSource({str(model_path())!r}).load().name == 'qwen3'",
        "print(*(name for name in set(sys.modules) - before if name.startswith(('renderers.', 'openai'))))",
    )
    assert loaded == ["renderers.qwen3"]
