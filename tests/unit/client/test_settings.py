from pathlib import Path

import pytest
from pydantic import ValidationError

from rolloutfleet.settings import SMALLEST_BUDGET, MemorySettings, PeersSettings, ProxySettings
from rolloutfleet.spec_for_proxies import DumpSpec, SessionsSpec


def settings(tmp_path: Path, **more: object) -> ProxySettings:
    return ProxySettings.model_validate(
        {"fleet": "math", "model": "m", "state_dir": tmp_path, "gateway_url": "http://127.0.0.1:1", **more}
    )


def test_settings_survive_being_written_to_a_file(tmp_path: Path) -> None:
    asked = settings(
        tmp_path,
        replicas=2,
        sessions=SessionsSpec(stale_after=90.0, dump=DumpSpec(path="")),
        peers=PeersSettings(ports=[8001, 8002]),
    )
    assert ProxySettings.model_validate_json(asked.model_dump_json()) == asked


def test_the_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    plain = settings(tmp_path)
    assert plain.body_limit == 64 * 2**20
    assert (plain.most_cached, plain.most_in_flight) == (64 * 2**20, 2**30)
    assert plain.abort_rounds == 20
    assert plain.stream_comment == 3
    assert plain.engine_timeout == 600
    assert plain.sessions == SessionsSpec()
    assert plain.tokenizer.thinking_retention == "all"


@pytest.mark.parametrize(
    ("budget", "cached", "in_flight"), [("16Gi", 64, 4096), ("512Mi", 64, 128), ("256Mi", 32, 128), ("64Mi", 8, 128)]
)
def test_caches_and_bodies_follow_from_the_budget(tmp_path: Path, budget: str, cached: int, in_flight: int) -> None:
    asked = settings(tmp_path, memory=MemorySettings.model_validate({"rss_budget": budget}))
    assert (asked.most_cached, asked.most_in_flight) == (cached * 2**20, in_flight * 2**20)
    assert asked.smallest_budget == SMALLEST_BUDGET == 2**29
    said = settings(tmp_path, memory=asked.memory, cache_bytes=7, in_flight_bytes=2**28)
    assert (said.most_cached, said.most_in_flight, said.smallest_budget) == (7, 2**28, 2**30)


@pytest.mark.parametrize(
    ("peers", "addresses"),
    [
        ({}, ["http://127.0.0.1:8080", "http://127.0.0.1:8080"]),
        ({"base_port": 9000}, ["http://127.0.0.1:9000", "http://127.0.0.1:9001"]),
        ({"ports": [7001, 7007]}, ["http://127.0.0.1:7001", "http://127.0.0.1:7007"]),
        ({"template": "http://math-{ordinal}.math:{port}"}, ["http://math-0.math:8080", "http://math-1.math:8080"]),
    ],
)
def test_an_address_follows_from_the_ordinal(tmp_path: Path, peers: dict[str, object], addresses: list[str]) -> None:
    found = settings(tmp_path, replicas=2, peers=peers)
    assert [found.address_of(ordinal) for ordinal in range(2)] == addresses


@pytest.mark.parametrize(
    "wrong",
    [
        {"peers": {"template": "http://{host}"}},
        {"peers": {"template": "http://{"}},
        {"peers": {"ports": [1]}, "replicas": 2},
        {"gateway_url": "127.0.0.1:1"},
        {"replicas": 0},
        {"surprise": 1},
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        settings(tmp_path, **wrong)
