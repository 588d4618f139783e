"""The files in docs/deploy: they parse, follow the rules of their kind, and say what the code says."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from helexa import cli
from helexa import config as configuration
from helexa.config_tables import Server
from helexa.keys.key_limits import Usage
from helexa.metrics import Metrics
from helexa.scheduler.roster import Roster

ROOT = Path(__file__).parent.parent.parent.parent
DEPLOY = ROOT / "docs" / "deploy"
ROUTES = {"/health", "/ready", "/metrics"}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def parses_as_command(words: list[str]) -> None:
    cli.parser().parse_args(words)


def metric_names() -> set[str]:
    """Every sample name that /metrics can have."""
    metrics = Metrics(Roster())
    metrics.count_keys({"key-1": Usage()})
    names = set()
    for family in text_string_to_metric_families(metrics.text()):
        names |= {family.name}
        names |= {
            f"{family.name}{ending}"
            for ending in {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [])
        }
    return names


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:helexa_\w+|vllm:\w+)", expression))


# Docker


def instructions(name: str) -> list[tuple[str, str]]:
    lines = (DEPLOY / name).read_text().replace("\\\n", " ").splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in found)]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
def test_dockerfiles_follow_the_rules(name):
    """Fixed base images, no leftovers of apt, no root at the end, exec forms, and a command line that exists."""
    steps = instructions(name)
    known = {
        "FROM",
        "RUN",
        "WORKDIR",
        "COPY",
        "ENV",
        "USER",
        "VOLUME",
        "EXPOSE",
        "STOPSIGNAL",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert {word for word, _ in steps} <= known
    bases = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert len(bases) == 2 and all(":" in base and not base.endswith(":latest") for base in bases)
    for word, rest in steps:
        if word == "RUN" and "apt-get install" in rest:
            assert "apt-get update" in rest and "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
        if word == "RUN" and "pip install" in rest:
            assert "--no-cache-dir" in rest and "-c constraints.txt" in rest
        if word == "WORKDIR":
            assert rest.startswith("/")
        if word == "COPY" and not rest.startswith("--from="):
            assert all((ROOT / source).exists() for source in rest.split()[:-1])
    last = dict(steps)
    assert last["USER"].partition(":")[0].isdigit() and last["USER"] != "0"
    assert json.loads(last["ENTRYPOINT"]) == ["helexa"]
    parses_as_command(json.loads(last["CMD"]))
    assert last["STOPSIGNAL"] == "SIGTERM" and last["EXPOSE"] == str(Server().port)
    assert "/health" in last["HEALTHCHECK"]


def test_the_cuda_image_installs_an_extra_that_exists():
    project = (ROOT / "pyproject.toml").read_text()
    assert "cuda13 = [" in project and ".[cuda13]" in (DEPLOY / "Dockerfile.cuda").read_text()


# systemd

DIRECTIVES = {
    "Unit": {"Description", "Documentation", "Wants", "After"},
    "Service": {
        "Type", "User", "Group", "Environment", "RuntimeDirectory", "RuntimeDirectoryMode", "CacheDirectory",
        "ConfigurationDirectory", "WorkingDirectory", "ExecStart", "ExecReload", "KillMode", "KillSignal", "TimeoutStopSec", "Restart",
        "RestartSec",
        "RestartPreventExitStatus", "LimitNOFILE", "NoNewPrivileges", "PrivateTmp", "PrivateDevices",
        "ProtectSystem", "ProtectHome",
        "ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "RestrictSUIDSGID",
        "LockPersonality", "RestrictAddressFamilies",
    },
    "Install": {"WantedBy"},
}  # fmt: skip


def test_the_systemd_unit():
    """Only directives that exist, commands that exist, time enough for a drain, and a wrong configuration is not tried again."""
    text = (DEPLOY / "helexa.service").read_text()
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text)
    assert {section: set(unit[section]) - DIRECTIVES[section] for section in unit.sections()} == {
        section: set() for section in DIRECTIVES
    }
    service = unit["Service"]
    for command in (service["ExecStart"], service["ExecReload"]):
        words = shlex.split(command)
        assert words[0].startswith("/") and words[0].endswith("/helexa")
        parses_as_command(words[1:])
    assert int(service["TimeoutStopSec"]) > Server().drain_s
    assert service["RestartPreventExitStatus"] == "2" and service["KillMode"] == "mixed"
    assert {"XDG_RUNTIME_DIR=/run/helexa", "HELEXA_CONFIG=/etc/helexa/helexa.toml"} <= set(
        re.findall(r"^Environment=(.*)$", text, re.M)
    )


# Compose and Kubernetes


def test_the_configuration_file_is_right():
    tree = configuration.load(DEPLOY / "helexa.toml", {})
    assert tree.keys.file == str(DEPLOY / "keys.json")


def test_the_compose_file():
    """A chat page by its image's name that is given the key, both on loopback ports, and a stop that lets a drain end."""
    (compose,) = documents("compose.yaml")
    helexa, page = compose["services"]["helexa"], compose["services"]["page"]
    assert (DEPLOY / helexa["build"]["context"] / helexa["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    parses_as_command(helexa["command"])
    assert int(helexa["stop_grace_period"].removesuffix("s")) > Server().drain_s
    assert "/ready" in helexa["healthcheck"]["test"][-1]
    assert page["environment"]["OPENAI_API_BASE_URL"] == "http://helexa:8000/v1"
    assert "HELEXA_API_KEY" in page["environment"]["OPENAI_API_KEY"]
    assert page["depends_on"]["helexa"]["condition"] == "service_healthy"
    for service in (helexa, page):
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or source.startswith("./")


def test_the_kubernetes_manifest():
    """Probes ask the routes that are meant for them, every mount has its volume, nothing runs as root, a drain has its time."""
    objects = {item["kind"]: item for item in documents("kubernetes.yaml")}
    assert set(objects) == {"ConfigMap", "PersistentVolumeClaim", "Deployment", "Service"}
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/ready", "readiness": "/ready", "liveness": "/health"}
    parses_as_command(container["args"])
    volumes = {volume["name"] for volume in pod["volumes"]}
    for one in [container, *pod["initContainers"]]:
        assert {mount["name"] for mount in one["volumeMounts"]} <= volumes
        assert one["securityContext"]["readOnlyRootFilesystem"] and not one["securityContext"]["allowPrivilegeEscalation"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["terminationGracePeriodSeconds"] > Server().drain_s
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"].items() <= labels.items()
    text = objects["ConfigMap"]["data"]["helexa.toml"]
    import tomllib

    assert tomllib.loads(text)["keys"]["file"] == "/keys/keys.json"


# nginx


def test_the_nginx_site_passes_streams_on():
    """Blocks are closed, directives ended; no buffering, no compression, time for a silent stream."""
    text = "\n".join(line.partition("#")[0].rstrip() for line in (DEPLOY / "nginx.conf").read_text().splitlines())
    assert text.count("{") == text.count("}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert all(line.endswith((";", "{", "}")) for line in lines)
    assert {"proxy_buffering off;", "gzip off;", "proxy_http_version 1.1;"} <= set(lines)
    timeout = next(line for line in lines if line.startswith("proxy_read_timeout"))
    assert int(re.findall(r"\d+", timeout)[0]) > Server().drain_s


# Prometheus and Grafana


def test_alerts_ask_for_metrics_that_exist():
    (rules,) = documents("alerts.yaml")
    known = metric_names()
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 5
    for rule in alerts:
        assert names_in(rule["expr"]) <= known, rule["expr"]
        assert names_in(rule["expr"]) or rule["expr"].startswith("up{")
        assert rule["labels"]["severity"] in ("critical", "warning") and rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_dashboard_asks_for_metrics_that_exist():
    """Every panel has its own number and place."""
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    known = metric_names()
    places = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        places.add((at["x"], at["y"]))
        for target in panel["targets"]:
            assert names_in(target["expr"]) and names_in(target["expr"]) <= known, target["expr"]
            assert target["expr"].count("(") == target["expr"].count(")") and target["expr"].count("{") == target["expr"].count(
                "}"
            )
    assert len(places) == len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_every_metric_is_documented_and_every_documented_one_exists():
    """In docs/operation.md, by the name that a scraper sees."""
    documented = names_in((ROOT / "docs" / "operation.md").read_text()) - {"helexa_key_"}
    known = metric_names()
    assert documented <= known, documented - known
    families = {name for name in known if not name.endswith(("_bucket", "_sum", "_count"))}
    counters = {name.removesuffix("_total") for name in families if name.endswith("_total")}
    assert families - counters <= documented, families - counters - documented
