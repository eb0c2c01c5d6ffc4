"""Wrap lines of text the way runtimes, collectors and loggers do."""

from __future__ import annotations

import json
from collections.abc import Callable

NEEDLE = "SpecDecoding metrics:"
STAMP = "2026-04-19T10:00:10.061123456Z"
LOCAL = "2026-04-19 10:00:10,144"
BASE = (
    "(APIServer pid=812) INFO:     Application startup complete.",
    f"(APIServer pid=812) INFO 04-19 10:00:10 [metrics.py:101] {NEEDLE} Accepted: 160 tokens, Drafted: 300 tokens",
    '(APIServer pid=812) INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK',
    f"(APIServer pid=812) INFO 04-19 10:00:20 [metrics.py:101] {NEEDLE} Accepted: 180 tokens, Drafted: 360 tokens",
)

Wrap = Callable[[str], str]


def docker(line: str) -> str:
    return json.dumps({"log": line + "\n", "stream": "stdout", "time": STAMP}, separators=(",", ":"))


def cri(line: str) -> str:
    return f"{STAMP} stdout F {line}"


def compose(line: str) -> str:
    return f"vllm-1   | {line}"


def compose_stamped(line: str) -> str:
    return f"vllm-1  | {STAMP} {line}"


def piped(line: str) -> str:
    return f"2026-04-19 17:34:11.437 | {line}"


def kubectl(line: str) -> str:
    return f"[pod/vllm-0/server] {line}"


def kubectl_stamped(line: str) -> str:
    return f"[pod/vllm-0/server] {STAMP} {line}"


def stamped(line: str) -> str:
    return f"{STAMP} {line}"


def journald(line: str) -> str:
    entry = {
        "__REALTIME_TIMESTAMP": "1776592810061123",
        "_PID": "812",
        "_COMM": "vllm",
        "_SYSTEMD_UNIT": "vllm.service",
        "MESSAGE": line,
    }
    return json.dumps(entry)


def journald_bytes(line: str) -> str:
    entry = {"__REALTIME_TIMESTAMP": "1776592810061123", "_PID": "812", "MESSAGE": list(line.encode())}
    return json.dumps(entry)


def journal_iso(line: str) -> str:
    return f"2026-04-19T10:00:10+0000 node-a vllm[812]: {line}"


def rfc3164(line: str) -> str:
    return f"Apr 19 10:00:10 node-a vllm[812]: {line}"


def rfc3164_pri(line: str) -> str:
    return f"<134>Apr  9 10:00:10 node-a vllm: {line}"


def rfc5424(line: str) -> str:
    return f"<134>1 2026-04-19T10:00:10.061Z node-a vllm 812 - - {line}"


def rfc5424_structured(line: str) -> str:
    return f'<134>1 2026-04-19T10:00:10.061Z node-a vllm 812 ID47 [a@1 k="v \\] \\" w"][b@2] {line}'


def loki(line: str) -> str:
    return json.dumps({"labels": {"app": "vllm", "pod": "vllm-0"}, "line": line, "timestamp": STAMP})


def loki_push(line: str) -> str:
    return json.dumps({"stream": {"pod": "vllm-0", "container": "server"}, "values": [["1776592810061123456", line]]})


def logcli(line: str) -> str:
    return f'{STAMP} {{app="vllm", pod="vllm-0"}} {line}'


def json_logging(line: str) -> str:
    record = {
        "asctime": LOCAL,
        "levelname": "INFO",
        "name": "vllm.v1.metrics.loggers",
        "processName": "MainProcess",
        "process": 812,
        "message": line,
        "vllm_process_name": "APIServer",
    }
    return json.dumps(record)


def fluent_bit(line: str) -> str:
    kubernetes = {"pod_name": "vllm-0", "container_name": "server", "namespace_name": "ml"}
    return json.dumps({"@timestamp": STAMP, "log": line, "kubernetes": kubernetes})


def cloud(line: str) -> str:
    labels = {"pod_name": "vllm-0", "container_name": "server"}
    return json.dumps({"textPayload": line, "timestamp": STAMP, "resource": {"labels": labels}})


def cloud_json(line: str) -> str:
    return json.dumps({"jsonPayload": {"message": line, "process": 812}, "timestamp": STAMP})


def ts_number(line: str) -> str:
    return json.dumps({"ts": 1776592810.061, "level": "info", "msg": line})


def ansi(line: str) -> str:
    return f"\x1b[0;36m{line[:19]}\x1b[0;0m{line[19:]}\x1b[K"


# name: (wrapping, envelope, stamp, stream, process)
WRAPS: dict[str, tuple[Wrap, str | None, str | None, str | None, str | None]] = {
    "plain": (str, None, None, None, None),
    "ansi": (ansi, None, None, None, None),
    "docker": (docker, "docker", STAMP, None, None),
    "cri": (cri, "cri", STAMP, None, None),
    "compose": (compose, "compose", None, "vllm-1", None),
    "compose_stamped": (compose_stamped, "compose>stamp", STAMP, "vllm-1", None),
    "piped": (piped, "stamp", "2026-04-19 17:34:11.437", None, None),
    "kubectl": (kubectl, "kubectl", None, "vllm-0/server", None),
    "kubectl_stamped": (kubectl_stamped, "kubectl>stamp", STAMP, "vllm-0/server", None),
    "stamped": (stamped, "stamp", STAMP, None, None),
    "journald": (journald, "journald", "1776592810061123", "vllm.service", "vllm 812"),
    "journald_bytes": (journald_bytes, "journald", "1776592810061123", None, "812"),
    "journal_iso": (journal_iso, "syslog", "2026-04-19T10:00:10+0000", "node-a/vllm", "vllm 812"),
    "rfc3164": (rfc3164, "syslog", "Apr 19 10:00:10", "node-a/vllm", "vllm 812"),
    "rfc3164_pri": (rfc3164_pri, "syslog", "Apr  9 10:00:10", "node-a/vllm", "vllm"),
    "rfc5424": (rfc5424, "syslog", "2026-04-19T10:00:10.061Z", "node-a/vllm", "vllm 812"),
    "rfc5424_structured": (rfc5424_structured, "syslog", "2026-04-19T10:00:10.061Z", "node-a/vllm", "vllm 812"),
    "loki": (loki, "loki", STAMP, "vllm-0", None),
    "loki_push": (loki_push, "loki", "1776592810061123456", "vllm-0/server", None),
    "logcli": (logcli, "loki", STAMP, "vllm-0", None),
    "json_logging": (json_logging, "json", LOCAL, None, "APIServer 812"),
    "fluent_bit": (fluent_bit, "json", STAMP, "vllm-0/server", None),
    "cloud": (cloud, "json", STAMP, "vllm-0/server", None),
    "cloud_json": (cloud_json, "json>json", STAMP, None, "812"),
    "ts_number": (ts_number, "json", "1776592810.061000", None, None),
    # an outer stamp without a zone gives way to a complete one inside; otherwise the outermost stays
    "cri_json": (lambda line: cri(json_logging(line)), "cri>json", STAMP, None, "APIServer 812"),
    "docker_json": (lambda line: docker(json_logging(line)), "docker>json", STAMP, None, "APIServer 812"),
    "docker_compose": (lambda line: docker(compose(line)), "docker>compose", STAMP, "vllm-1", None),
    "json_cri": (lambda line: json_logging(stamped(line)), "json>stamp", STAMP, None, "APIServer 812"),
    "syslog_docker": (lambda line: rfc3164(docker(line)), "syslog>docker", STAMP, "node-a/vllm", "vllm 812"),
    "kubectl_json": (lambda line: kubectl_stamped(json_logging(line)), "kubectl>stamp>json", STAMP, "vllm-0/server",
                     "APIServer 812"),
    "loki_cri_json": (lambda line: loki(cri(json_logging(line))), "loki>cri>json", STAMP, "vllm-0", "APIServer 812"),
    "docker_ansi": (lambda line: docker(ansi(line)), "docker", STAMP, None, None),
}  # fmt: skip
