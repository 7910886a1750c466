"""What is made for a fleet, and what in it makes pods outdated."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.operator.cluster.fleets import OPERATOR, fleet_of, spec_of

from rolloutfleet.settings import ProxySettings
from rolloutfleet.units import parse_duration
from rolloutfleet_engine.cues import parse_cues
from rolloutfleet_operator.cluster.children import all as every
from rolloutfleet_operator.cluster.children import proxies
from rolloutfleet_operator.cluster.children.names import SETTINGS_FILE, SIMULATED_MODEL_PATH, TEMPLATE_HASH, Fleet
from rolloutfleet_operator.cluster.children.network import FieldInvalid
from rolloutfleet_operator.cluster.children.settings import config_map, proxy_settings, restart_hash
from rolloutfleet_operator.policy.decide import Evictable

Children = dict[tuple[str, str], dict[str, Any]]


def made(fleet: Fleet) -> Children:
    told = proxy_settings(fleet, OPERATOR, peers=fleet.spec.proxies.replicas)
    template = proxies.template(fleet, OPERATOR, told)
    counts = every.Replicas(proxies=2, gateways=1, engines=1)
    parts = [
        *every.parts(fleet, OPERATOR, told, Evictable(ready=1, unready=True)),
        *every.workloads(fleet, OPERATOR, template, counts, None, "a hash"),
    ]
    children = [part.make() for part in parts]
    assert [(part.kind, part.name) for part in parts] == [(each["kind"], each["metadata"]["name"]) for each in children]
    return {(each["kind"], each["metadata"]["name"]): each for each in children}


def pod_of(children: Children, kind: str, name: str) -> Any:
    return children[kind, name]["spec"]["template"]["spec"]


def container_of(children: Children, kind: str, name: str) -> Any:
    return pod_of(children, kind, name)["containers"][0]


def hash_of(**fields: Any) -> str:
    fleet = fleet_of(**fields)
    template = proxies.template(fleet, OPERATOR, proxy_settings(fleet, OPERATOR, peers=fleet.spec.proxies.replicas))
    found: str = template["metadata"]["annotations"][TEMPLATE_HASH]
    return found


PLAIN = {
    ("ConfigMap", "math-settings"),
    ("Service", "math-proxies"),
    ("Service", "math"),
    ("Service", "math-gateway"),
    ("Service", "math-engine-pods"),
    ("PodDisruptionBudget", "math-proxy"),
    ("PodDisruptionBudget", "math-gateway"),
    ("Deployment", "math-engine"),
    ("Deployment", "math-gateway"),
    ("StatefulSet", "math-proxy"),
}


def test_a_plain_fleet_has_these_children_and_no_more() -> None:
    assert set(made(fleet_of())) == PLAIN


@pytest.mark.parametrize(
    ("fields", "more", "fewer"),
    [
        ({"networkPolicy": {}}, {("NetworkPolicy", "math"), ("NetworkPolicy", "math-gateway")}, set()),
        ({"endpoint": {"ingress": {"host": "a.b"}}}, {("Ingress", "math")}, set()),
        ({"gateway": {"replicas": 1}}, set(), {("PodDisruptionBudget", "math-gateway")}),
        ({"suspend": True}, set(), {("PodDisruptionBudget", "math-proxy"), ("PodDisruptionBudget", "math-gateway")}),
        (
            {"engine": None, "gateway": {"engines": {"urls": ["http://10.0.0.1:1"]}}},
            set(),
            {
                ("Service", "math-engine-pods"),
                ("Deployment", "math-engine"),
            },
        ),
    ],
)
def test_fields_bring_children_and_take_them_away(
    fields: dict[str, Any], more: set[tuple[str, str]], fewer: set[tuple[str, str]]
) -> None:
    assert set(made(fleet_of(**fields))) == (PLAIN | more) - fewer


def test_every_child_ends_with_its_fleet_and_says_whose_it_is() -> None:
    for child in made(fleet_of(networkPolicy={}, endpoint={"ingress": {}})).values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["kind"]) == ("u-1", True, "RolloutFleet")
        assert child["metadata"]["labels"]["rolloutfleet.dev/fleet"] == "math"
        assert child["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rolloutfleet-operator"


@pytest.mark.parametrize(
    ("kind", "name"), [("StatefulSet", "math-proxy"), ("Deployment", "math-gateway"), ("Deployment", "math-engine")]
)
def test_pods_are_restricted(kind: str, name: str) -> None:
    children = made(fleet_of())
    pod, container = pod_of(children, kind, name), container_of(children, kind, name)
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["enableServiceLinks"] is False
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod


def test_pods_keep_apart_where_they_can_and_never_wait_for_it() -> None:
    """By node whether or not nodes have a zone: spread constraints would ask for both labels."""
    (kind,) = pod_of(made(fleet_of()), "StatefulSet", "math-proxy")["affinity"]["podAntiAffinity"].items()
    assert kind[0] == "preferredDuringSchedulingIgnoredDuringExecution"
    assert {term["podAffinityTerm"]["topologyKey"] for term in kind[1]} == {
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    }


def test_pods_replace_themselves_never() -> None:
    spec = made(fleet_of())["StatefulSet", "math-proxy"]["spec"]
    assert (spec["updateStrategy"], spec["podManagementPolicy"]) == ({"type": "OnDelete"}, "Parallel")
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_an_engine_goes_before_the_next_comes_and_a_gateway_after() -> None:
    """There may be no GPU to spare; and calls go on through a fleet's only gateway."""

    def strategy(name: str) -> tuple[str, int, int]:
        found = made(fleet_of())["Deployment", name]["spec"]["strategy"]
        return found["type"], found["rollingUpdate"]["maxSurge"], found["rollingUpdate"]["maxUnavailable"]

    assert strategy("math-engine") == ("RollingUpdate", 0, 1)
    assert strategy("math-gateway") == ("RollingUpdate", 1, 0)


@pytest.mark.parametrize("model", ["simulated", "some/model"])
def test_an_engine_that_is_told_to_end_serves_on_for_gateways_to_let_go_of_it(model: str) -> None:
    children = made(fleet_of(model=model))
    engine = container_of(children, "Deployment", "math-engine")
    assert engine["lifecycle"] == {"preStop": {"sleep": {"seconds": 10}}}
    assert pod_of(children, "Deployment", "math-engine")["terminationGracePeriodSeconds"] == 70


def test_pods_without_a_state_of_their_own_leave_a_lost_node_soon() -> None:
    asked = {"key": "gpu", "operator": "Exists"}
    soon = [
        {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 20}
        for taint in ("not-ready", "unreachable")
    ]
    children = made(fleet_of(gateway={"tolerations": [asked]}))
    assert pod_of(children, "Deployment", "math-gateway")["tolerations"] == [asked, *soon]
    assert pod_of(children, "Deployment", "math-engine")["tolerations"] == soon
    assert "tolerations" not in pod_of(children, "StatefulSet", "math-proxy")
    assert "tolerations" not in pod_of(made(fleet_of(model="some/model")), "Deployment", "math-engine")


@pytest.mark.parametrize("fields", [{}, {"engine": None, "gateway": {"engines": {"selector": {"app": "sglang"}}}}])
def test_names_of_proxies_and_engines_are_those_of_unready_ones_too(fields: dict[str, Any]) -> None:
    """A proxy that starts has its sessions' calls, and an engine in a pause is one that a gateway begins with."""
    children = made(fleet_of(**fields))
    services = {name: child["spec"] for (kind, name), child in children.items() if kind == "Service"}
    unready = {name for name, spec in services.items() if spec.get("publishNotReadyAddresses")}
    assert unready == {"math-proxies", "math-engine-pods"}
    assert {name for name, spec in services.items() if spec.get("clusterIP") == "None"} == unready
    if fields:
        assert services["math-engine-pods"]["selector"] == {"app": "sglang"}


def test_grace_is_above_the_drain_and_above_the_gateways_own_shutdown() -> None:
    children = made(fleet_of(disruption={"drainTimeout": "2m"}))
    assert pod_of(children, "StatefulSet", "math-proxy")["terminationGracePeriodSeconds"] == 155
    gateway = container_of(children, "Deployment", "math-gateway")
    shutdown = int(gateway["args"][gateway["args"].index("--shutdown-grace-period-secs") + 1])
    pause = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of(children, "Deployment", "math-gateway")["terminationGracePeriodSeconds"] > shutdown + pause


def test_a_proxy_leaves_the_service_before_it_ends() -> None:
    children = made(fleet_of())
    proxy = container_of(children, "StatefulSet", "math-proxy")
    probe, told = proxy["readinessProbe"], json.loads(children["ConfigMap", "math-settings"]["data"][SETTINGS_FILE])
    assert proxy["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}
    assert parse_duration(told["leave_time"]) > probe["periodSeconds"] * probe["failureThreshold"]


def test_lost_proxies_are_named_only_where_there_are_some_and_change_no_template() -> None:
    fleet = fleet_of()
    told = [proxy_settings(fleet, OPERATOR, peers=3, lost=lost) for lost in ((), (0, 2))]
    none, some = (json.loads(config_map(fleet, each)["data"][SETTINGS_FILE]) for each in told)
    assert "lost_proxies" not in none
    assert some["lost_proxies"] == [0, 2]
    assert restart_hash(told[0]) == restart_hash(told[1])


def test_a_full_store_has_an_hour_to_be_opened() -> None:
    probe = container_of(made(fleet_of()), "StatefulSet", "math-proxy")["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 3600


def test_probes_of_the_gateway_tell_alive_from_ready() -> None:
    gateway = container_of(made(fleet_of()), "Deployment", "math-gateway")
    paths = {kind: gateway[kind]["httpGet"]["path"] for kind in ("livenessProbe", "readinessProbe")}
    assert paths == {"livenessProbe": "/liveness", "readinessProbe": "/readiness"}
    assert {"--disable-retries", "--disable-circuit-breaker"} <= set(gateway["args"])


def test_a_gateway_hears_soon_of_dead_connections_but_in_its_nodes_network() -> None:
    def sysctls(**asked: Any) -> Any:
        gateway = {"podTemplate": {"spec": asked}} if asked else {}
        return pod_of(made(fleet_of(gateway=gateway)), "Deployment", "math-gateway")["securityContext"].get("sysctls")

    ours = [
        {"name": f"net.ipv4.tcp_keepalive_{name}", "value": value} for name, value in (("intvl", "5"), ("probes", "3"))
    ]
    theirs = [{"name": "net.ipv4.tcp_keepalive_time", "value": "30"}]
    assert sysctls() == ours
    assert sysctls(securityContext={"sysctls": theirs}) == theirs
    assert sysctls(hostNetwork=True) is None


def test_a_gateway_finds_no_engines_itself_and_is_started_with_those_that_are_named() -> None:
    """Its own discovery would have it write bodies anew, and want a right on pods."""
    sources: list[dict[str, Any]] = [{}]
    sources.append({"engine": None, "gateway": {"engines": {"selector": {"app": "sglang"}, "port": 8000}}})
    for fields in sources:
        args = container_of(made(fleet_of(**fields)), "Deployment", "math-gateway")["args"]
        assert not {"--service-discovery", "--selector", "--worker-urls"} & set(args)
        assert {"--policy", "--disable-retries", "--disable-worker-overload-protection"} < set(args)
    named = fleet_of(engine=None, gateway={"engines": {"urls": ["http://10.0.0.1:1", "http://10.0.0.2:1"]}})
    args = container_of(made(named), "Deployment", "math-gateway")["args"]
    assert args[args.index("--worker-urls") :] == ["--worker-urls", "http://10.0.0.1:1", "http://10.0.0.2:1"]


def test_a_gateways_control_plane_takes_a_key_of_its_own_which_proxies_that_ask_it_have_too() -> None:
    children = made(fleet_of())
    command = container_of(children, "Deployment", "math-gateway")["command"]
    (path,) = [file for flag, _, file in json.loads(command[-1]) if flag == "--control-plane-api-keys"]
    told = json.loads(children["ConfigMap", "math-settings"]["data"][SETTINGS_FILE])
    assert told["gateway_control_key_file"] == path
    for kind, name in (("Deployment", "math-gateway"), ("StatefulSet", "math-proxy")):
        volumes = {each["name"]: each for each in pod_of(children, kind, name)["volumes"]}
        assert volumes["control-key"]["secret"] == {"secretName": "math-gateway-key"}
    named = made(fleet_of(engine=None, gateway={"engines": {"urls": ["http://10.0.0.1:1"]}}))
    assert "control-key" not in json.dumps(pod_of(named, "StatefulSet", "math-proxy"))


def test_another_key_of_the_control_plane_brings_new_gateways() -> None:
    fleet, counts = fleet_of(), every.Replicas(proxies=1, gateways=1, engines=1)

    def gateway(key: str) -> Any:
        parts = every.workloads(fleet, OPERATOR, None, counts, None, key)
        return next(part.make() for part in parts if part.name == "math-gateway")["spec"]["template"]

    assert gateway("one") == gateway("one") != gateway("another")


def test_sessions_are_given_the_services_address_unless_the_owners_is_asked_for() -> None:
    def told(**endpoint: object) -> list[str]:
        proxy = container_of(made(fleet_of(endpoint=endpoint)), "StatefulSet", "math-proxy")
        return [each["value"] for each in proxy["env"] if each["name"] == "ROLLOUTFLEET_SERVICE_URL"]

    assert told() == ["http://math.rl.svc.cluster.local"]
    assert told(direct=True) == []


def test_no_key_is_in_environment_arguments_or_probes() -> None:
    children = made(fleet_of(gateway={"apiKeySecret": "engines"}, tokenizer={"tokenSecret": "hub"}))
    for kind, name in (("StatefulSet", "math-proxy"), ("Deployment", "math-gateway")):
        mounts = {mount["name"]: mount for mount in container_of(children, kind, name)["volumeMounts"]}
        assert "subPath" not in mounts["engine-key"]
        container = container_of(children, kind, name)
        environment = [each for each in container.get("env", ()) if "secretKeyRef" in json.dumps(each)]
        assert [each["name"] for each in environment] == (["HF_TOKEN"] if kind == "StatefulSet" else [])
        assert "httpHeaders" not in json.dumps([container[probe] for probe in container if probe.endswith("Probe")])


def test_an_engine_with_a_key_is_alive_if_it_answers_anything() -> None:
    def probe(**fields: Any) -> Any:
        return container_of(made(fleet_of(**fields)), "Deployment", "math-engine")["livenessProbe"]

    plain, keyed = probe(), probe(gateway={"apiKeySecret": "engines"})
    assert plain["httpGet"]["path"] == "/model_info"
    assert "httpGet" not in keyed and keyed["exec"]["command"][-1] == "30000"
    assert keyed["timeoutSeconds"] == plain["timeoutSeconds"]


def test_dumps_are_on_the_claim_or_on_the_volume_that_is_named() -> None:
    def mount(**sessions: Any) -> Any:
        children = made(fleet_of(sessions={"dump": sessions}))
        container = container_of(children, "StatefulSet", "math-proxy")
        (found,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/dumps")
        volumes = {each["name"]: each for each in pod_of(children, "StatefulSet", "math-proxy")["volumes"]}
        return found, volumes.get("dumps")

    assert mount() == ({"name": "state", "mountPath": "/dumps", "subPath": "dumps"}, None)
    shared = {"persistentVolumeClaim": {"claimName": "all"}}
    assert mount(volume=shared) == ({"name": "dumps", "mountPath": "/dumps"}, {"name": "dumps", **shared})


def test_storage_is_a_claim_or_ephemeral() -> None:
    claimed = made(fleet_of(proxies={"storage": {"size": "5Gi", "className": "fast"}}))["StatefulSet", "math-proxy"][
        "spec"
    ]
    (claim,) = claimed["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    children = made(fleet_of(proxies={"storage": {"ephemeral": True}}))
    assert "volumeClaimTemplates" not in children["StatefulSet", "math-proxy"]["spec"]
    assert {"name": "state", "emptyDir": {}} in pod_of(children, "StatefulSet", "math-proxy")["volumes"]


def test_a_grown_size_leaves_the_claim_template_which_cant_change() -> None:
    fleet = fleet_of(proxies={"storage": {"size": "9Gi"}})
    live = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "state", "labels": {"a": "b"}},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "5Gi"}},
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    }
    (claim,) = proxies.stateful_set(fleet, {}, replicas=1, claims=[live])["spec"]["volumeClaimTemplates"]
    assert claim == {
        "metadata": {"name": "state", "labels": {"a": "b"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
    }


def test_settings_are_what_a_proxy_takes() -> None:
    fleet = fleet_of(
        proxies={"replicas": 3, "storage": {"size": "10Gi"}},
        sessions={"staleAfter": "90s"},
        memory={"rssBudget": "3Gi"},
        generation=7,
    )
    text = made(fleet)["ConfigMap", "math-settings"]["data"][SETTINGS_FILE]
    told = ProxySettings.model_validate_json(text)
    assert (told.generation, told.replicas, told.sessions.stale_after, told.fleet_uid) == (7, 3, 90.0, "u-1")
    assert told.sessions.limits.bytes == 8 * 2**30 and told.memory.rss_budget == 3 * 2**30
    assert told.address_of(2) == "http://math-proxy-2.math-proxies.rl.svc.cluster.local:8080"
    assert told.gateway_url == "http://math-gateway.rl.svc.cluster.local:30000"


def test_proxies_of_another_release_are_told_of_no_setting_that_nobody_set() -> None:
    """The API server fills defaults in, those too that only this release has."""
    asked = {"sessions": {"staleAfter": "90s"}, "tokenizer": {"renderer": "qwen3"}}
    defaults = spec_of().model_dump(by_alias=True, exclude_none=True)
    filled = {name: {**defaults[name], **each} for name, each in asked.items()}
    few, full = (made(fleet_of(**given, generation=7)) for given in (asked, filled))
    text = full["ConfigMap", "math-settings"]["data"][SETTINGS_FILE]
    told = json.loads(text)
    assert told["sessions"] == {"stale_after": "90s", "limits": {"bytes": "16Gi"}}, "and what the storage decides"
    assert told["tokenizer"] == {"path": SIMULATED_MODEL_PATH, "renderer": "qwen3"} and told["checked"] is True
    assert few == full, "nor is a pod outdated by them"


SAME: dict[str, Mapping[str, Any]] = {
    "replicas": {"proxies": {"replicas": 9}},
    "a raised budget": {"memory": {"rssBudget": "9Gi"}},
    "sessions": {"sessions": {"staleAfter": "1s", "dump": {"path": "/dumps/x"}}},
    "gateway": {"gateway": {"replicas": 4}},
    "generation": {"generation": 8},
    "a restart by id": {"restart": {"id": "again"}},
    "a larger claim": {"proxies": {"storage": {"size": "90Gi"}}},
    "rotation": {"auth": {"rotate": {"id": "x"}}},
}
OTHER: dict[str, Mapping[str, Any]] = {
    "model": {"model": "other"},
    "image": {"image": "other"},
    "a limit of one's own": {"proxies": {"resources": {"limits": {"memory": "7Gi"}}}},
    "drainTimeout": {"disruption": {"drainTimeout": "7s"}},
    "podTemplate": {"proxies": {"podTemplate": {"metadata": {"annotations": {"a": "b"}}}}},
    "dump volume": {"sessions": {"dump": {"volume": {"emptyDir": {}}}}},
    "public url": {"endpoint": {"publicURL": "https://a.b"}},
    "direct": {"endpoint": {"direct": True}},
}


@pytest.mark.parametrize("fields", SAME.values(), ids=list(SAME))
def test_these_make_no_pod_outdated(fields: Mapping[str, Any]) -> None:
    assert hash_of(**fields) == hash_of()


@pytest.mark.parametrize("fields", OTHER.values(), ids=list(OTHER))
def test_these_make_pods_outdated(fields: Mapping[str, Any]) -> None:
    assert hash_of(**fields) != hash_of()


def test_memory_of_a_pod_template_makes_pods_outdated_and_a_budget_beside_it_none() -> None:
    def with_limit(memory: str) -> dict[str, Any]:
        limit = {"name": "proxy", "resources": {"limits": {"memory": memory}}}
        return {"podTemplate": {"spec": {"containers": [limit]}}}

    hashes = {hash_of(), hash_of(proxies=with_limit("15Gi")), hash_of(proxies=with_limit("17Gi"))}
    assert len(hashes) == 3
    raised = hash_of(proxies=with_limit("15Gi"), memory={"rssBudget": "9Gi"})
    assert raised in hashes


def test_a_new_pod_is_told_which_restart_it_needs_no_more() -> None:
    fleet = fleet_of(restart={"id": "again"})
    template = proxies.template(fleet, OPERATOR, proxy_settings(fleet, OPERATOR, peers=1))
    assert template["metadata"]["annotations"]["rolloutfleet.dev/restart-id"] == "again"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"endpoint": {"ingress": {"hots": "a"}}}, r"spec.endpoint.ingress.hots: no such field"),
        ({"endpoint": {"ingress": {"tls": "a"}}}, r"spec.endpoint.ingress.tls: must be a list"),
        ({"networkPolicy": {"ingress": []}}, r"spec.networkPolicy.ingress: no such field; known here: from"),
    ],
)
def test_fields_that_kubernetes_fills_are_checked_too(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldInvalid, match=said):
        made(fleet_of(**fields))


def test_simulated_engines_ask_for_the_key_too_where_there_is_one() -> None:
    keyed = container_of(made(fleet_of(gateway={"apiKeySecret": "k"})), "Deployment", "math-engine")
    assert '[["--api-key", "", "/etc/rolloutfleet/engine-key/api-key"]]' in keyed["command"]
    assert keyed["command"][0] == "dumb-init" and "rolloutfleet_engine" in keyed["command"]
    assert "engine-key" in {mount["name"] for mount in keyed["volumeMounts"]}
    assert "command" not in container_of(made(fleet_of()), "Deployment", "math-engine")


def test_simulated_engines_are_told_their_cues_as_they_stand() -> None:
    replies = [{"text": "é"}, {"calls": [{"name": "Bash", "arguments": {"command": "echo $(HOME) $$"}}]}]
    cued = {"gpus": 0, "simulated": {"cues": [{"cue": "Begin.", "replies": replies}]}}
    arguments = container_of(made(fleet_of(engine=cued)), "Deployment", "math-engine")["args"]
    told = arguments[arguments.index("--cues") + 1]
    assert "$" not in told
    (cue,) = parse_cues(told.encode())
    assert (cue.cue, cue.replies[0].text) == ("Begin.", "é")
    assert cue.replies[1].calls[0].arguments == {"command": "echo $(HOME) $$"}
    assert "--cues" not in container_of(made(fleet_of()), "Deployment", "math-engine")["args"]


@pytest.mark.parametrize("model", ["simulated", "Qwen/Qwen3-8B"])
def test_every_container_requests_processor_and_memory_unless_the_fleet_says_how_much(model: str) -> None:
    children = made(fleet_of(model=model))
    workloads = [("StatefulSet", "math-proxy"), ("Deployment", "math-gateway"), ("Deployment", "math-engine")]
    for workload in workloads:
        assert {"cpu", "memory"} == container_of(children, *workload)["resources"]["requests"].keys()
    asked = {"requests": {"cpu": "3"}}
    template = {"spec": {"containers": [{"name": "engine", "resources": asked}]}}
    own: dict[str, Any] = {
        "proxies": {"resources": asked},
        "gateway": {"resources": asked},
        "engine": {"podTemplate": template},
    }
    children = made(fleet_of(**own))
    for workload in workloads:
        assert container_of(children, *workload)["resources"]["requests"]["cpu"] == "3"


def test_a_limited_resource_gets_no_smaller_request() -> None:
    limited = {"limits": {"cpu": "2", "memory": "2Gi"}}
    template = {"spec": {"containers": [{"name": "engine", "resources": limited}]}}
    children = made(fleet_of(gateway={"resources": limited}, engine={"gpus": 0, "podTemplate": template}))
    for part in ("gateway", "engine"):
        assert container_of(children, "Deployment", f"math-{part}")["resources"] == limited


def test_a_managed_sglang_asks_for_gpus_and_runs_as_its_image_does() -> None:
    fleet = fleet_of(model="Qwen/Qwen3-8B", engine={"gpus": 8, "args": ["--tp", "8"]}, gateway={"apiKeySecret": "k"})
    children = made(fleet)
    engine = container_of(children, "Deployment", "math-engine")
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert engine["args"][-2:] == ["--tp", "8"] and "sglang.launch_server" in engine["command"]
    assert '[["--api-key", "", "/etc/rolloutfleet/engine-key/api-key"]]' in engine["command"]
    assert "runAsNonRoot" not in pod_of(children, "Deployment", "math-engine")["securityContext"]
