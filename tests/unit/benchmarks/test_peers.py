"""The peers are run as their own pages say."""

from benchmarks.peers import running
from benchmarks.peers.environments import lock_of


def test_litellm_runs_with_the_settings_of_its_production_page() -> None:
    settings = running.litellm_settings("http://127.0.0.1:1", "sk-1")
    assert settings["general_settings"]["master_key"] == "sk-1"
    assert settings["litellm_settings"] == {"request_timeout": 600, "set_verbose": False, "json_logs": True}
    assert running.LITELLM_ENVIRONMENT["LITELLM_MODE"] == "PRODUCTION"
    locked = {line.partition("==")[0] for line in lock_of("litellm").read_text().splitlines() if "==" in line}
    assert {"litellm", "uvloop"} <= locked
