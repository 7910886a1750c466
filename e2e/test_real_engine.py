"""A fleet on a real SGLang, which runs on this machine's CPU: what agents did is kept as the engine itself noted it.

The engine asks for a key, which the fleet has from a Secret.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
from tests.engine.request_log import Answered, RequestLog
from tests.engine.sglang import launch
from tests.engine.sglang.places import Installed, find
from tests.processes import Server, free_port, serving
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record

from e2e import agents
from e2e.fleets import Fleet
from e2e.installing import Images, Operator
from e2e.networks import address_of_this_machine

pytestmark = [pytest.mark.full, pytest.mark.timeout(1500)]
SECONDS_TO_START: Final = 600
LONG: Final = 2500
KEY: Final = "an-engine-key-for-tests-alone"
TOKENIZER: Final = ("config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def sglang() -> Installed:
    installed = find()
    if installed is None:
        pytest.fail("The real SGLang is not installed: make sglang")
    return installed


@pytest.fixture
def engine(record: Record, sglang: Installed, tmp_path: Path) -> Iterator[Server]:
    """On the address by which pods reach this machine, and on no other."""
    host, port = address_of_this_machine(record), free_port()
    words = launch.command(sglang, model=sglang.model("first"), port=port, request_log=tmp_path / "requests", host=host)
    with serving(
        [*words, "--api-key", KEY],
        host=host,
        port=port,
        log=tmp_path / "log",
        environment=launch.environment(sglang),
        deadline=SECONDS_TO_START,
    ) as server:
        yield server


def spec(engine: Server) -> dict[str, Any]:
    """The tokenizer is mounted from a ConfigMap, as a volume of the cluster's would be."""
    mount = {"name": "tokenizer", "mountPath": "/tokenizer"}
    return {
        "model": "tiny",
        "tokenizer": {"path": "/tokenizer"},
        "engine": None,
        "gateway": {"engines": {"urls": [engine.url]}, "apiKeySecret": "engine-key"},
        "proxies": {
            "podTemplate": {
                "spec": {
                    "containers": [{"name": "proxy", "volumeMounts": [mount]}],
                    "volumes": [{"name": "tokenizer", "configMap": {"name": "tokenizer"}}],
                }
            }
        },
    }


def as_float32(values: list[float]) -> list[float]:
    kept: list[float] = np.asarray(values, dtype=np.float32).tolist()
    return kept


def assert_kept(turns: list[Any], rounds: list[Answered]) -> None:
    """The session's turns, one after another, are what the engine sampled: ids, log-probabilities and versions."""
    assert [token for turn in turns for token in turn["output_ids"]] == [i for made in rounds for i in made.output]
    kept = [value for turn in turns for value in turn["logprobs"]]
    assert as_float32(kept) == as_float32([value for made in rounds for value in made.logprobs])
    assert [v for turn in turns for v in turn["versions"]] == [v for made in rounds for v in made.versions]


def assert_exported(trajectory: Any, rounds: list[Answered]) -> None:
    """Its one row ends with the engine's last prompt and answer; the trained tokens are those it sampled."""
    (row,) = trajectory["rows"]
    tensors = row["tensors"]
    assert tensors["input_ids"] == rounds[-1].prompt + rounds[-1].output
    trained = np.asarray(tensors["loss_mask"], dtype=bool)
    assert np.asarray(tensors["input_ids"])[trained].tolist() == [token for made in rounds for token in made.output]
    wanted = as_float32([value for made in rounds for value in made.logprobs])
    assert np.asarray(tensors["logprobs"], dtype=np.float32)[trained].tolist() == wanted
    versions = [version for made in rounds for version in made.versions]
    assert np.asarray(tensors["versions"])[trained].tolist() == versions
    assert set(np.asarray(tensors["versions"])[~trained].tolist()) == {-1}


def test_what_is_exported_is_what_sglang_sampled_with_new_weights_in_the_middle_of_a_turn(
    operator: Operator, engine: Server, sglang: Installed, namespace: Kubectl, images: Images
) -> None:
    files = [f"--from-file={sglang.model('first') / name}" for name in TOKENIZER]
    namespace("create", "configmap", "tokenizer", *files)
    namespace("create", "secret", "generic", "engine-key", f"--from-literal=api-key={KEY}")
    assert httpx.post(f"{engine.url}/generate", json={"text": "Hello"}).status_code == 401
    fleet = Fleet(namespace, images, spec=spec(engine)).make()

    words = ("training.py", "2", engine.url, KEY, str(sglang.model("second")))
    said = agents.run(namespace, *words, fleet=fleet.name, image=images.proxy, seconds=500)

    log = RequestLog(engine.log.parent / "requests")
    trajectories = {each["session_id"]: each for each in said["trajectories"]}
    assert len(said["trajectories"]) == len(said["turns"]) == 4
    for session, turns in said["turns"].items():
        rounds = log.answered(session)
        assert_kept(turns, rounds)
        assert_exported(trajectories[session], rounds)
        assert {version for turn in turns for version in turn["versions"]} == {1, 2}
    (long,) = (turns[0] for turns in said["turns"].values() if len(turns) == 1)
    assert long["completion_tokens"] == LONG
    cut = long["versions"].index(2)
    assert long["versions"] == [1] * cut + [2] * (LONG - cut)
    assert said["audit"]["balanced"] is True
    assert said["audit"]["turns"]["acknowledged"] == 3 * 4 + 1
