"""Deployment files: they agree with the program, with each other and with their own formats.

Their linters run if they are installed; deploy/README.md lists them.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import COMMANDS
from gateway.config.settings import Settings, load_settings
from gateway.operator.preflight import check_settings_are_runnable
from gateway.server.process import calculate_max_request_seconds
from gateway.server.workers.supervisor import KILL_MARGIN_SECONDS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
CONFIGURATIONS = (DEPLOY / "compose/gateway.toml", KUBERNETES / "base/gateway.toml")
SECRETS = {
    "state-url": "postgresql://gateway:password@postgres/gateway",
    "limits-url": "redis://:password@redis:6379/0",
    "gateway.key": "",
    "admin-token": "a-token-that-is-long-enough",
}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
MAX_STOP_SECONDS = calculate_max_request_seconds(Settings()) + KILL_MARGIN_SECONDS
"""The longest shutdown, as the program computes it."""


def load_yaml_documents(*paths: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        for document in yaml.safe_load_all(path.read_text("utf-8")):
            yield path.stem, document


def build_overlay(overlay: str) -> dict[str, dict[str, Any]]:
    """Returns the manifests that kustomize builds, by kind."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    result = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / overlay)], capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return {document["kind"]: document for document in yaml.safe_load_all(result.stdout)}


def test_yaml_files_pass_yamllint() -> None:
    pytest.importorskip("yamllint")
    result = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "deploy", "compose.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.parent.name)
def test_example_configuration_is_runnable(path: Path, tmp_path: Path) -> None:
    for name, text in SECRETS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    text = re.sub(r"/run/secrets(/payout-gateway)?", str(tmp_path), path.read_text("utf-8"))
    (tmp_path / "gateway.toml").write_text(text)
    settings = load_settings(tmp_path / "gateway.toml")
    check_settings_are_runnable(settings)
    assert settings.state.url.startswith("postgresql://")
    assert settings.limits.url.startswith("redis://")
    assert settings.server.workers == 1, "see SECURITY.md"
    assert not settings.state.restore_mark_path.is_relative_to(tmp_path), "not beside the secrets"


# Kubernetes


@pytest.mark.parametrize("overlay", ["base", "several"])
def test_manifests_match_their_kubernetes_schemas(overlay: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for kind, value in build_overlay(overlay).items():
        validate.validate(value, "1.37", strict=True)
        assert kind


@pytest.mark.parametrize("overlay", ["base", "several"])
@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_containers_are_restricted(overlay: str, kind: str) -> None:
    pod = build_overlay(overlay)[kind]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["args"][0] in COMMANDS
        assert ":" in container["image"], "a version, and not whatever is the latest"


def test_base_overlay_runs_one_replica() -> None:
    spec = build_overlay("base")["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert "HorizontalPodAutoscaler" not in build_overlay("base")
    overlay_documents = build_overlay("several")
    assert overlay_documents["Deployment"]["spec"]["strategy"]["type"] == "RollingUpdate"
    deployment_name = overlay_documents["Deployment"]["metadata"]["name"]
    assert (
        overlay_documents["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == deployment_name
    )
    selector = overlay_documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    labels = overlay_documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()


def test_limit_hosts_equal_the_maximum_of_replicas() -> None:
    overlay_documents = build_overlay("several")
    (gateway,) = overlay_documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    hosts = {entry["name"]: entry["value"] for entry in gateway["env"]}[
        "PAYOUT_GATEWAY_LIMITS__HOSTS"
    ]
    assert int(hosts) == overlay_documents["HorizontalPodAutoscaler"]["spec"]["maxReplicas"]


@pytest.mark.parametrize("overlay", ["base", "several"])
def test_selectors_match_gateway_pods_only(overlay: str) -> None:
    overlay_documents = build_overlay(overlay)
    job = overlay_documents["Job"]["spec"]["template"]["metadata"]["labels"]
    pod = overlay_documents["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        overlay_documents["Deployment"]["spec"]["selector"]["matchLabels"],
        overlay_documents["Service"]["spec"]["selector"],
    ]
    if "PodDisruptionBudget" in overlay_documents:
        selectors.append(
            overlay_documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
        )
    for selector in selectors:
        assert selector.items() <= pod.items()
        assert not selector.items() <= job.items()


def test_pod_has_grace_period_and_mounted_files() -> None:
    pod = build_overlay("base")["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= MAX_STOP_SECONDS
    ((_, secret),) = load_yaml_documents(KUBERNETES / "secret.example.yaml")
    assert secret["stringData"].keys() == SECRETS.keys()
    assert not any(secret["stringData"].values())
    configuration = (KUBERNETES / "base/gateway.toml").read_text("utf-8")
    mounted_paths = {
        mount["mountPath"]: mount
        for container in pod["containers"]
        for mount in container["volumeMounts"]
    }
    for name in SECRETS:
        assert f"/run/secrets/payout-gateway/{name}" in configuration
    assert "/run/secrets/payout-gateway" in mounted_paths
    (mark_folder,) = re.findall('mark_file = "(.*)/mark"', configuration)
    assert mark_folder in mounted_paths
    by_name = {volume["name"]: volume for volume in pod["volumes"]}
    assert by_name["secrets"]["secret"]["defaultMode"] == 0o440, "key files are not for others"


def test_probes_and_ports_match_the_configuration() -> None:
    configuration = tomllib.loads((KUBERNETES / "base/gateway.toml").read_text("utf-8"))
    default = Settings().server
    server = {"port": default.port, "admin_port": default.admin_port, **configuration["server"]}
    (container,) = build_overlay("base")["Deployment"]["spec"]["template"]["spec"]["containers"]
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    assert ports == {"http": server["port"], "admin": server["admin_port"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "admin"}
    allowed = [
        port["port"]
        for rule in build_overlay("base")["NetworkPolicy"]["spec"]["ingress"]
        for port in rule["ports"]
    ]
    assert sorted(allowed) == sorted(ports.values())


# Containers


def test_compose_file_references_exist() -> None:
    services = COMPOSE["services"]
    secret_names = {entry for service in services.values() for entry in service.get("secrets", [])}
    assert secret_names == COMPOSE["secrets"].keys()
    mounts = [entry for service in services.values() for entry in service.get("volumes", [])]
    for mount in mounts:
        source = mount.partition(":")[0]
        # Written by the first command, write-secrets.sh.
        if source == "./compose/secrets":
            continue
        if source.startswith("."):
            assert (DEPLOY / source).exists(), source
        else:
            assert source in COMPOSE["volumes"]
    for mount in COMPOSE["secrets"].values():
        assert "/secrets/" in mount["file"]
    for name in ("gateway", "init"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    assert int(services["gateway"]["stop_grace_period"].removesuffix("s")) >= MAX_STOP_SECONDS


def test_compose_images_have_versions_and_ports_bind_to_loopback() -> None:
    for name, service in COMPOSE["services"].items():
        if service["image"] != "payout-gateway":
            assert re.search(r":v?\d+\.\d+", service["image"]), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_script_writes_every_secret_of_the_compose_file_once(tmp_path: Path) -> None:
    command = ["sh", str(DEPLOY / "compose/write-secrets.sh"), str(tmp_path)]
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(command, env=variables, check=True)
    secrets = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert secrets.keys() == {Path(entry["file"]).name for entry in COMPOSE["secrets"].values()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    password = secrets["postgres-password"]
    assert secrets["state-url"] == f"postgresql://gateway:{password}@postgres/gateway"
    assert len(password) > 40
    assert secrets["prometheus-token"] == secrets["admin-token"]
    assert subprocess.run(command, env=variables, check=False).returncode == 2
    readers: dict[str, set[str]] = {}
    for name, service in COMPOSE["services"].items():
        for secret in service.get("secrets", []):
            readers.setdefault(secret, set()).add(name)
    assert all(len(names) == 1 for names in readers.values()), "one owner for each file"


def test_demo_needs_no_secrets_and_is_published_on_loopback() -> None:
    """`docker compose up` in a clone."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["services"]
    demo, forward = services["demo"], services["forward"]
    assert demo["command"] == ["serve", "--demo", "--traffic"]
    text = (DEPLOY / "compose/demo.cfg").read_text("utf-8")
    inner_ports = [port.rpartition(":")[2] for port in demo["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in demo["ports"])
    assert re.findall(r"bind :(\d+)", text) == inner_ports
    server = Settings().server
    assert re.findall(r"server demo 127.0.0.1:(\d+)", text) == [
        str(server.port),
        str(server.admin_port),
    ]
    assert forward["network_mode"] == "service:demo"
    assert not any("secrets" in service or "env_file" in service for service in services.values())
    if checker := shutil.which("haproxy"):
        command = [checker, "-c", "-f", str(DEPLOY / "compose/demo.cfg")]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_service_monitor_selects_the_admin_port_with_its_token() -> None:
    ((_, monitor),) = load_yaml_documents(KUBERNETES / "servicemonitor.example.yaml")
    (endpoint,) = monitor["spec"]["endpoints"]
    documents = build_overlay("base")
    service = documents["Service"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert endpoint["authorization"]["credentials"]["key"] in SECRETS


def test_secrets_are_ignored_by_version_control() -> None:
    ignored_paths = (ROOT / ".gitignore").read_text("utf-8").split()
    assert "deploy/compose/secrets/" in ignored_paths


def test_image_copies_existing_files() -> None:
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    let_in = {
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").split() if line[0] == "!"
    }
    copied_paths = {
        name
        for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied_paths == let_in
    assert all((ROOT / name).exists() for name in copied_paths)
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert json.loads(command)[0] in COMMANDS
    if linter := shutil.which("hadolint"):
        result = subprocess.run(
            [linter, "-"], input=text.encode(), capture_output=True, check=False
        )
        assert result.returncode == 0, result.stdout


# Prometheus and Grafana beside it


def test_prometheus_and_grafana_files_are_mounted() -> None:
    ((_, prometheus),) = load_yaml_documents(DEPLOY / "prometheus/prometheus.yml")
    mounted_paths = COMPOSE["services"]["prometheus"]["volumes"][0].split(":")[1]
    for rules in prometheus["rule_files"]:
        assert (DEPLOY / "prometheus" / Path(rules).relative_to(mounted_paths)).exists()
    (job,) = prometheus["scrape_configs"]
    assert job["job_name"] == "payout-gateway", "alerts and panels go by it"
    port = Settings().server.admin_port
    assert job["static_configs"] == [{"targets": [f"gateway:{port}"]}]
    ((_, provider),) = load_yaml_documents(
        DEPLOY / "grafana/provisioning/dashboards/payout-gateway.yml"
    )
    path = provider["providers"][0]["options"]["path"]
    assert any(path in volume for volume in COMPOSE["services"]["grafana"]["volumes"])


# One machine


def test_systemd_unit_is_valid_and_has_stop_timeout(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd/payout-gateway.service").read_text("utf-8")
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(seconds) >= MAX_STOP_SECONDS
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / "payout-gateway.service"
    unit.write_text(text.replace("/opt/payout-gateway/bin/payout-gateway", "/bin/true"))
    result = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    unit_lines = [line for line in result.stderr.splitlines() if "payout-gateway.service" in line]
    assert (result.returncode, unit_lines) == (0, [])


def test_proxy_examples_do_not_retry_and_have_long_timeouts() -> None:
    nginx = (DEPLOY / "proxies/nginx.conf").read_text("utf-8")
    assert "proxy_next_upstream off;" in nginx
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", nginx)
    assert int(seconds) > 2 * Settings().upstream.timeout_seconds
    haproxy = (DEPLOY / "proxies/haproxy.cfg").read_text("utf-8")
    assert re.search(r"^\s+retries 0$", haproxy, re.MULTILINE)
    assert "no option redispatch" in haproxy
    for text in (nginx, haproxy):
        assert re.search(r"(add|append)[-_]?(header)? .*X-Forwarded-For", text) is None
        assert "$proxy_add_x_forwarded_for" not in text


def test_examples_do_not_trust_private_networks() -> None:
    """A trusted client can choose the address for which its requests count."""
    lists = [
        (path, match[1])
        for path in sorted([*DEPLOY.rglob("*"), ROOT / "README.md"])
        if path.is_file() and path.suffix != ".png"
        for match in re.finditer(
            r"(?i)trusted_proxies\W*=[^\[\n]*(\[[^\]]*\])", path.read_text("utf-8")
        )
    ]
    assert {path.name for path, _ in lists} >= {"gateway.toml", "haproxy.cfg", "nginx.conf"}
    for path, addresses in lists:
        for entry in json.loads(addresses):
            network = ipaddress.ip_network(entry)
            assert network.num_addresses <= 256, f"{path}: {entry}"
