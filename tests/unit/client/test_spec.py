from typing import Any

import pytest
from pydantic import ValidationError

from rolloutfleet.explain import explain
from rolloutfleet.spec import FleetSpec, RolloutFleet, memory_limit, sessions_in_force

SMALLEST: dict[str, Any] = {"metadata": {"name": "math"}, "spec": {"model": "m", "engine": {}}}


def fleet(**spec: Any) -> RolloutFleet:
    return RolloutFleet.model_validate({**SMALLEST, "spec": {**SMALLEST["spec"], **spec}}, by_name=False)


def problems(**spec: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        fleet(**spec)
    return explain(caught.value, RolloutFleet)


def test_the_defaults_are_those_of_the_contract() -> None:
    unsaid = dict.fromkeys(("temperature", "topP", "topK", "maxTokens", "chatTemplateKwargs"))
    spec = fleet().spec
    assert spec.model_dump(mode="json", by_alias=True, exclude={"engine": {"simulated"}}) == {
        "model": "m",
        "models": {"names": None},
        "compatibility": {"requests": "lenient", "images": "refuse"},
        "weights": {"cache": "byVersion"},
        "tokenizer": {
            "path": None,
            "hub": None,
            "tokenSecret": None,
            "renderer": None,
            "thinkingRetention": "all",
            "specialTokensInText": "text",
        },
        "suspend": False,
        "image": None,
        "imagePullSecrets": [],
        "proxies": {
            "replicas": 1,
            "resources": {"requests": {}, "limits": {}, "claims": []},
            "storage": {"size": None, "className": None, "adopt": None, "nodeLocal": None, "ephemeral": False},
            "nodeSelector": {},
            "tolerations": [],
            "podTemplate": {},
        },
        "sessions": {
            "staleAfter": "1h",
            "unclaimedAfter": "1d",
            "cleanupInterval": "1m",
            "retryGrace": "10s",
            "maxHold": "5m",
            "dump": {"path": "/dumps", "volume": None, "keep": {"age": None, "bytes": None}},
            "limits": {"sessions": None, "bytes": None, "turns": None, "tokens": None},
            "sampling": {"defaults": unsaid, "overrides": unsaid},
        },
        "inspect": {"keep": {"fraction": 0.0, "maxBytes": "1Gi"}},
        "memory": {
            "rssBudget": "4Gi",
            "samples": 3,
            "interval": "15s",
            "cooldown": "10m",
            "restart": "Process",
        },
        "disruption": {"maxUnavailable": 1, "maintenance": False, "drainTimeout": "1m", "retireTimeout": "1h"},
        "gateway": {
            "replicas": None,
            "policy": "consistent_hashing",
            "engines": None,
            "apiKeySecret": None,
            "nodeSelector": {},
            "tolerations": [],
            "resources": {"requests": {}, "limits": {}, "claims": []},
            "podTemplate": {},
        },
        "engine": {"replicas": 1, "gpus": 1, "args": [], "podTemplate": {}},
        "auth": {"secret": None, "rotate": None, "overlap": "1h"},
        "endpoint": {"publicURL": None, "direct": False, "ingress": None},
        "networkPolicy": None,
        "updatePolicy": "Automatic",
        "restart": None,
    }


def test_a_resource_survives_being_written_and_read() -> None:
    asked = fleet(
        sessions={"staleAfter": "90s", "retryGrace": "250ms", "dump": {"path": "", "keep": {"bytes": "1Ti"}}},
        proxies={"replicas": 8, "storage": {"size": "20Gi", "className": "fast"}},
        endpoint={"publicURL": "https://fleet.example/"},
        engine={"replicas": 2, "simulated": {"latency": "1s", "cues": [{"cue": "a", "replies": []}]}},
    )
    written = asked.model_dump(mode="json", by_alias=True)
    assert RolloutFleet.model_validate(written, by_name=False) == asked
    assert asked.spec.endpoint.public_url == "https://fleet.example"


def test_what_the_cluster_adds_to_metadata_is_let_through() -> None:
    read = RolloutFleet.model_validate(
        {**SMALLEST, "metadata": {"name": "math", "uid": "u", "managedFields": []}, "status": {"replicas": 1}}
    )
    assert read.metadata.name == "math"


def test_a_status_as_the_cluster_gives_it_is_read() -> None:
    status = {
        "replicas": 3,
        "restart": {"observedID": "2026-11-21"},
        "current": {"action": "restart", "pod": "math-1", "since": "2026-11-21T08:00:00Z", "waitingFor": "slot"},
        "conditions": [{"type": "Ready", "status": "False", "reason": "ProxyNotReady", "observedGeneration": 2}],
        "somethingNewer": 1,
    }
    read = RolloutFleet.model_validate({**SMALLEST, "status": status}, by_name=False).status
    assert read is not None
    assert read.restart.observed_id == "2026-11-21"
    assert read.current is not None
    assert read.current.waiting_for == "slot"
    assert read.conditions[0].observed_generation == 2


def test_the_store_may_fill_80_percent_of_its_volume() -> None:
    def limit(**storage: Any) -> int | None:
        return sessions_in_force(fleet(proxies={"storage": storage}).spec).limits.bytes

    assert limit(size="10Gi") == 8 * 2**30
    assert limit() == 16 * 2**30
    assert limit(ephemeral=True) is None
    asked = fleet(sessions={"limits": {"bytes": "1Gi", "turns": 7}}).spec
    assert sessions_in_force(asked).limits.bytes == 2**30
    assert sessions_in_force(asked).limits.turns == 7


def test_the_memory_limit_is_a_third_above_the_budget() -> None:
    assert memory_limit(fleet(memory={"rssBudget": "10Gi"}).spec) == 13 * 2**30
    limits = {"limits": {"memory": "6Gi"}}
    assert memory_limit(fleet(proxies={"resources": limits}).spec) == 6 * 2**30


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"modle": "x"}, "spec.modle: no such field; did you mean model?"),
        (
            {"sessions": {"stale_after": "1h"}},
            "spec.sessions.stale_after: no such field; did you mean staleAfter?",
        ),
        (
            {"engine": {"simulated": {"tokenlatency": 1}}},
            "spec.engine.simulated.tokenlatency: no such field; did you mean tokenLatency?",
        ),
        (
            {"engine": {"simulated": {"cues": [{"cue": "a", "replies": [{"txt": "b"}]}]}}},
            "spec.engine.simulated.cues[0].replies[0].txt: no such field; did you mean text?",
        ),
        (
            {"engine": {"simulated": {"cues": [{"cue": "a", "replies": [{"text": "b" * 64_000}]}]}}},
            "spec.engine.simulated.cues: 64071 bytes of JSON are more than the 64000 that an engine can be told",
        ),
        ({"endpoint": {"publicUrl": "x"}}, "spec.endpoint.publicUrl: no such field; did you mean publicURL?"),
        ({"restart": {"zzz": "1", "id": "1"}}, "spec.restart.zzz: no such field; known here: id"),
        ({"model": ""}, "spec.model: must not be empty"),
        ({"proxies": {"replicas": "8"}}, "spec.proxies.replicas: must be a whole number, not '8'"),
        ({"proxies": {"replicas": True}}, "spec.proxies.replicas: must be a whole number, not True"),
        ({"proxies": {"replicas": -1}}, "spec.proxies.replicas: must be greater than or equal to 0, not -1"),
        ({"proxies": None}, "spec.proxies: must be a mapping, not empty"),
        ({"suspend": "no"}, "spec.suspend: must be true or false, not 'no'"),
        (
            {"memory": {"restart": "procss"}},
            "spec.memory.restart: must be Process, Container or Pod, not 'procss'",
        ),
        (
            {"sessions": {"dump": {"path": "dumps"}}},
            "spec.sessions.dump.path: 'dumps' must be /dumps or a folder below it, without .. in it",
        ),
        (
            {"sessions": {"dump": {"path": "/dumps/../etc"}}},
            "spec.sessions.dump.path: '/dumps/../etc' must be /dumps or a folder below it, without .. in it",
        ),
        (
            {"proxies": {"storage": {"ephemeral": True, "size": "1Gi", "className": "x"}}},
            "spec.proxies.storage: ephemeral storage has no claim, so size, className can't be set with it",
        ),
        ({"tokenizer": {"path": "/m", "hub": "a/b"}}, "spec.tokenizer: path and hub are both given; keep one"),
        (
            {"memory": {"rssBudget": "4Gi"}, "proxies": {"resources": {"limits": {"memory": "4Gi"}}}},
            "spec: memory.rssBudget (4294967296 bytes) must be below proxies.resources.limits.memory "
            "(4294967296 bytes), or the kernel kills the proxy first",
        ),
        (
            {"proxies": {"resources": {"limits": {"memory": "4GB"}}}},
            "spec.proxies.resources.limits: memory: '4GB' is not a valid amount of bytes; did you mean 4G?",
        ),
        (
            {"gateway": {"engines": {"urls": ["http://a:1"]}}},
            "spec: gateway.engines and engine are both given; keep one source of engines",
        ),
        (
            {"engine": None},
            "spec: no engines: give gateway.engines.selector or gateway.engines.urls for engines that run "
            "already, or engine for engines of the fleet's own",
        ),
        (
            {"gateway": {"engines": {"urls": ["http://a:1"], "selector": {"a": "b"}}}, "engine": None},
            "spec.gateway.engines: name the engines by either selector or urls",
        ),
        (
            {"gateway": {"engines": {"urls": ["http://a:1", "http://a:1/"]}}, "engine": None},
            "spec.gateway.engines: urls names an engine twice",
        ),
        (
            {"gateway": {"engines": {"urls": []}}, "engine": None},
            "spec.gateway.engines: urls is empty; name at least one engine",
        ),
        (
            {"gateway": {"engines": {"selector": {}}}, "engine": None},
            "spec.gateway.engines: selector is empty; it would choose every pod in the namespace",
        ),
        (
            {"gateway": {"engines": {"urls": ["10.0.0.1:3000"]}}, "engine": None},
            "spec.gateway.engines.urls[0]: '10.0.0.1:3000' is not a valid address; write it like http://10.0.0.5:30000",
        ),
        (
            {"sessions": {"sampling": {"overrides": {"topK": 0}}}},
            "spec.sessions.sampling.overrides.topK: must be -1 (off) or at least 1, not 0",
        ),
        (
            {"sessions": {"sampling": {"defaults": {"top_p": 0.5}}}},
            "spec.sessions.sampling.defaults.top_p: no such field; did you mean topP?",
        ),
        (
            {"sessions": {"sampling": {"defaults": {"topP": 0}}}},
            "spec.sessions.sampling.defaults.topP: must be greater than 0.0, not 0",
        ),
        (
            {"inspect": {"keep": {"fraction": 1.5}}},
            "spec.inspect.keep.fraction: must be less than or equal to 1.0, not 1.5",
        ),
        (
            {"sessions": {"staleAfter": 0}},
            "spec.sessions.staleAfter: must be greater than 0, not 0",
        ),
    ],
)
def test_a_broken_rule_is_said_with_its_field(spec: dict[str, Any], problem: str) -> None:
    assert problem in problems(**spec)


@pytest.mark.parametrize(
    ("gateway", "replicas"),
    [
        ({}, 2),
        ({"policy": "random"}, 2),
        ({"policy": "manual"}, 1),  # each of two would remember its own choices
        ({"policy": "manual", "replicas": 3}, 3),
        ({"replicas": 1}, 1),
    ],
)
def test_a_cluster_runs_two_gateways_but_one_that_remembers(gateway: dict[str, Any], replicas: int) -> None:
    spec = FleetSpec.model_validate({"model": "simulated", "engine": {}, "gateway": gateway})
    assert spec.gateway.replicas_on_a_cluster == replicas


@pytest.mark.parametrize("policy", ["cache_aware", "power_of_two", "prefix_hash"])
def test_a_policy_under_which_the_gateway_loses_fields_is_refused_by_name(policy: str) -> None:
    (said,) = problems(gateway={"policy": policy})
    assert said.startswith("spec.gateway.policy: ") and policy in said
    assert "loses sampling parameters" in said
    assert said.endswith("use consistent_hashing, manual, round_robin or random")


@pytest.mark.parametrize("name", ["", "3math", "a.b", "Math", "a-", "a" * 41, "a\n"])
def test_a_name_that_a_service_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="not a valid fleet name"):
        RolloutFleet.model_validate({**SMALLEST, "metadata": {"name": name}})


@pytest.mark.parametrize("name", ["../../other/secrets/keys", "a/b", "a..b", "A", "a_b", "-a", "a.", "a\n", "%2e%2e"])
@pytest.mark.parametrize(
    ("part", "field"), [("auth", "secret"), ("gateway", "apiKeySecret"), ("tokenizer", "tokenSecret")]
)
def test_a_name_of_a_secret_that_kubernetes_would_refuse_is_refused(part: str, field: str, name: str) -> None:
    (said,) = problems(**{part: {field: name}})
    assert said.startswith(f"spec.{part}.{field}: must match ")


def test_a_name_of_a_secret_may_have_dots() -> None:
    assert fleet(auth={"secret": "keys-1.example.org"}).spec.auth.secret == "keys-1.example.org"


@pytest.mark.parametrize("name", ["", "a b", "a/", "/a", "A.b/c", "a..b/c", "a/b/c", "-a", "a" * 64, "app in (a)"])
def test_a_label_that_kubernetes_would_refuse_is_refused(name: str) -> None:
    (said,) = problems(gateway={"engines": {"selector": {name: "x"}}}, engine=None)
    assert said.startswith(f"spec.gateway.engines.selector.{name}.[key]: must match ")


@pytest.mark.parametrize("value", ["a b", "a/b", "a,b=c", "-a", "a.", "a" * 64])
def test_a_labels_value_that_kubernetes_would_refuse_is_refused(value: str) -> None:
    for part in ("proxies", "gateway"):
        (said,) = problems(**{part: {"nodeSelector": {"role": value}}})
        assert said.startswith(f"spec.{part}.nodeSelector.role: must match ")


def test_labels_may_have_a_prefix_and_an_empty_value() -> None:
    labels = {"example.org/Role_1": "", "a": "B-2.c_d"}
    assert fleet(proxies={"nodeSelector": labels}).spec.proxies.node_selector == labels


def test_python_may_use_its_own_names() -> None:
    spec = FleetSpec.model_validate({"model": "m", "engine": {}, "sessions": {"stale_after": 5}})
    assert spec.sessions.stale_after == 5
