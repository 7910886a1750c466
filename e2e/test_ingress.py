"""Agents reach a fleet through an Ingress, which an nginx serves as ingress-nginx would."""

import json
from typing import Any, Final

import pytest
from toolchain.kubernetes import debian, lifecycle
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.kubectl import Kubectl
from toolchain.kubernetes.records import Record
from toolchain.kubernetes.settings import Settings

from e2e.fleets import Fleet
from e2e.installing import Images, Operator

pytestmark = pytest.mark.full
NAME: Final = "front"
PORT: Final = 8080
ANNOTATION: Final = "nginx.ingress.kubernetes.io"
NGINX: Final = debian.System("nginx", ("nginx-light",), 60)
CONFIGURATION: Final = """
pid /tmp/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log /dev/stdout;
    client_body_temp_path /tmp/body;
    proxy_temp_path /tmp/proxy;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    upstream fleet {{ server {backend}; keepalive 320; }}
    server {{
        listen {port};
        server_name {host};
        client_max_body_size {body_size};
        location {path} {{
            proxy_pass http://fleet;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout {read_timeout}s;
        }}
    }}
}}
"""
"""An Ingress' rule as ingress-nginx 1.x configures it (`rootfs/etc/nginx/template/nginx.tmpl`), of the Service."""


def test_agents_behind_an_ingress_notice_no_proxy_that_is_restarted_or_deleted(
    operator: Operator, namespace: Kubectl, images: Images, record: Record, docker: Docker
) -> None:
    host = f"{NAME}.{namespace.namespace}.svc.cluster.local"
    annotations = {f"{ANNOTATION}/proxy-read-timeout": "1800", f"{ANNOTATION}/proxy-body-size": "64m"}
    endpoint = {"publicURL": f"http://{host}", "ingress": {"host": host, "annotations": annotations}}
    fleet = Fleet(namespace, images, spec={"endpoint": endpoint, "memory": {"restart": "Pod"}}).make()
    _serve(namespace, namespace.get(f"ingress/{fleet.name}"), _image(record, docker))
    with fleet.traffic(number=6) as traffic:
        fleet.patch({"restart": {"id": "one"}})
        fleet.until("the restart is answered", lambda: fleet.has_restarted("one"))
        fleet.until_ready()
        pod, uid = next(iter(fleet.uids().items()))
        namespace("delete", "pod", pod, "--wait=false")
        fleet.until(f"{pod} is another", lambda: fleet.uids().get(pod, uid) != uid)
        fleet.until_ready()
    assert traffic.errors == []
    assert len(traffic.answered) > 3
    assert traffic.lost(fleet.export(2)) == {}
    passed = namespace("logs", f"deployment/{NAME}").count("POST /sessions/")
    assert passed >= sum(map(len, traffic.answered.values()))


def _image(record: Record, docker: Docker) -> str:
    made = debian.ensure_image(NGINX, docker, mirror=Settings().debian_mirror)
    [name] = lifecycle.load(record, [made], docker)
    return name


def _serve(namespace: Kubectl, ingress: dict[str, Any], image: str) -> None:
    """Serve an Ingress at the host that it names, which is a Service's here."""
    [rule], annotations = ingress["spec"]["rules"], ingress["metadata"]["annotations"]
    [path] = rule["http"]["paths"]
    service = namespace.get(f"service/{path['backend']['service']['name']}")
    ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
    text = CONFIGURATION.format(
        backend=f"{service['metadata']['name']}:{ports[path['backend']['service']['port']['name']]}",
        port=PORT,
        host=rule["host"],
        path=path["path"],
        body_size=annotations[f"{ANNOTATION}/proxy-body-size"],
        read_timeout=annotations[f"{ANNOTATION}/proxy-read-timeout"],
    )
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"nginx.conf": text}}
    meta: dict[str, Any] = {"name": NAME, "labels": {"app": NAME}}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/sbin/nginx", "-g", "daemon off;", "-c", f"/etc/{NAME}/nginx.conf"],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": PORT}},
        "volumeMounts": [{"name": "config", "mountPath": f"/etc/{NAME}"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "securityContext": {"runAsUser": 65532, "runAsNonRoot": True},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "tmp", "emptyDir": {}}],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {"selector": {"matchLabels": meta["labels"]}, "template": {"metadata": meta, "spec": spec}},
    }
    front = {"selector": meta["labels"], "ports": [{"port": 80, "targetPort": PORT}]}
    exposed = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": front}
    for manifest in (config, deployment, exposed):
        namespace("create", "--filename", "-", stdin=json.dumps(manifest))
    namespace("rollout", "status", f"deployment/{NAME}", "--timeout=240s", seconds=250)
