"""The page for Prometheus: names, units, labels that hold anything, and no sample for what is not known."""

from __future__ import annotations

import dataclasses
import http.client
import math
import re
import socket
import threading
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tracelens.analysis.results import Report, Stratum
from tracelens.analysis.watched import Freshness, Watched
from tracelens.errors import InputError
from tracelens.ingest.watch import Held, Round
from tracelens.reporters import serving
from tracelens.reporters.format import visible
from tracelens.reporters.prometheus import AT_LEAST, COUNTERS, GAUGES, Exposition, label_names, served

from .fixture import HOSTILE, figures

Sample = tuple[str, tuple[tuple[str, str], ...]]
ROUND = Round(2, ("a.log",), True, (Held("b.log", 10, "later"),), (), 0.1)
FRESH = Freshness(datetime(2026, 5, 6, 12, 3, 10), 4, 10, 20, 30, 7)
LINE = re.compile(
    r'(?:# HELP [a-z_0-9]+ (?:[^\\\n]|\\\\|\\n)+|# TYPE [a-z_0-9]+ (?:gauge|counter)|'
    r'[a-z_0-9]+(?:\{[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*")*\})?'
    r" -?[0-9.e+-]+)"
)  # fmt: skip


def report(*keys: dict[str, Any], by: Sequence[str] = ("task_type",), **changed: Any) -> Report:
    strata = tuple(Stratum(key, figures(**changed)) for key in keys)
    return Report(tuple(by), strata, Stratum({}, figures(**changed)), (), ())


def page(shown: Report | None, fresh: Freshness = FRESH) -> str:
    registry = CollectorRegistry()
    exposition = Exposition()
    exposition.show(ROUND, Watched(fresh, shown))
    registry.register(exposition)  # type: ignore[arg-type]
    return generate_latest(registry).decode()


def samples(text: str) -> dict[Sample, float]:
    found: dict[Sample, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def test_figures_are_samples_in_base_units() -> None:
    found = samples(page(report({"task_type": "code"}, {"task_type": "chat"}, tpot_ms=12.5)))
    code = (("task_type", "code"),)
    assert found["tracelens_draft_accept_ratio", code] == 0.7194
    assert found["tracelens_draft_accept_ratio_low", code] == 0.7012
    assert found["tracelens_draft_accept_ratio_high", code] == 0.7377
    assert found["tracelens_relative_token_time_ratio", code] == 0.621
    assert found["tracelens_tpot_seconds", code] == pytest.approx(0.0125)
    assert found["tracelens_baseline_seconds", code] == pytest.approx(0.02134)
    assert found["tracelens_draft_rounds_total", code] == 181_204
    assert found["tracelens_rejected_records_total", ()] == 7
    assert found["tracelens_waiting_sources", ()] == 1
    assert found["tracelens_last_record_timestamp_seconds", ()] == 1778068990
    assert {dict(labels).get("task_type") for _, labels in found} == {"code", "chat", None}
    figures = [dict(labels) for name, labels in found if name != "tracelens_watch_info"]
    assert {name for labels in figures for name in labels} == {"task_type"}


def test_every_line_is_one_of_the_format_and_every_family_says_what_it_is() -> None:
    text = page(report({"task_type": HOSTILE}, {"task_type": 'a\\b"c\nd'}))
    lines = text.removesuffix("\n").split("\n")
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    told = {word: {line.split()[2] for line in lines if line.startswith(f"# {word} ")} for word in ("HELP", "TYPE")}
    named = {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}
    assert named == told["HELP"] == told["TYPE"]
    counters = {line.split()[2] for line in lines if line.startswith("# TYPE") and line.endswith(" counter")}
    assert counters == {name for name in named if name.endswith("_total")}


def test_names_carry_their_unit_and_are_there_once() -> None:
    units = ("_ratio", "_seconds", "_tokens")
    names = [gauge.name for gauge in (*GAUGES, AT_LEAST)]
    assert all(name.endswith(units) for name in names)
    assert all(counter.name.endswith("_total") for counter in COUNTERS)
    assert all((gauge.scale != 1) == gauge.figure.endswith("_ms") for gauge in GAUGES)
    assert all((gauge.scale != 1) == gauge.name.endswith("_seconds") for gauge in GAUGES)
    assert len({*names, *(counter.name for counter in COUNTERS)}) == len(names) + len(COUNTERS)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "text", True, [1.0]])
def test_what_is_no_number_has_no_sample(value: Any) -> None:
    found = samples(page(report({"task_type": "code"}, draft_accept_ratio=value, tau_committed=value, rounds=value)))
    names = {name for name, _ in found}
    assert not names & {
        "tracelens_draft_accept_ratio",
        "tracelens_tau_committed_tokens",
        "tracelens_draft_rounds_total",
    }
    assert "tracelens_relative_token_time_ratio" in names
    assert all(math.isfinite(v) for v in found.values())


def test_requests_that_nobody_counted_are_no_sample() -> None:
    assert not [
        n for n, _ in samples(page(report({"task_type": "code"}, requests=0))) if n == "tracelens_requests_total"
    ]


def test_a_lower_bound_has_a_name_of_its_own() -> None:
    names = {n for n, _ in samples(page(report({"task_type": "code"}, relative_token_time_basis="lower_bound")))}
    assert "tracelens_relative_token_time_at_least_ratio" in names
    assert "tracelens_relative_token_time_ratio" not in names


def test_without_strata_the_total_has_no_labels() -> None:
    found = samples(page(report(by=())))
    assert found["tracelens_draft_accept_ratio", ()] == 0.7194


def test_without_a_report_the_lake_is_told() -> None:
    names = {n for n, _ in samples(page(None, Freshness()))}
    assert names == {
        "tracelens_watch_info", "tracelens_last_look_timestamp_seconds", "tracelens_rejected_records_total",
        "tracelens_waiting_sources"
    }  # fmt: skip


ONE = {"run": "k5", "engine": "vllm", "model": "m/7B"}


def labels_of(shown: Report, name: str = "tracelens_draft_accept_ratio") -> list[dict[str, str]]:
    return [dict(labels) for found, labels in samples(page(shown)) if found == name]


@pytest.mark.parametrize(
    ("setting", "by", "labels"),
    [
        (ONE, ("task_type",), {"run": "k5", "engine": "vllm", "task_type": "x"}),
        ({"engine": "vllm"}, ("task_type",), {"engine": "vllm", "task_type": "x"}),
        ({}, ("task_type",), {"task_type": "x"}),
        # What is a key of the strata is no label twice, whatever its name.
        (ONE, ("run_id", "engine"), {"run_id": "x", "engine": "x"}),
        (ONE, ("run",), {"run": "x", "engine": "vllm"}),
        (ONE, (), {"run": "k5", "engine": "vllm"}),
    ],
)
def test_one_run_and_one_engine_are_labels_of_every_stratum(
    setting: dict[str, str], by: tuple[str, ...], labels: dict[str, str]
) -> None:
    shown = report(*([dict.fromkeys(by, "x")] if by else []), by=by)
    shown = dataclasses.replace(shown, setting=setting)
    assert labels_of(shown) == [labels]
    assert labels_of(shown, "tracelens_draft_rounds_total") == [labels]
    assert labels_of(shown, "tracelens_draft_accept_ratio_low") == [labels]
    assert labels_of(shown, "tracelens_waiting_sources") == [{}], "what is told of the lake is of no run"


def test_two_sites_do_not_collide() -> None:
    sites = [dataclasses.replace(report({"task_type": "chat"}), setting={"run": run}) for run in ("north", "south")]
    assert not set(samples(page(sites[0]))) & {
        key for key in samples(page(sites[1])) if "task_type" in dict(key[1])
    }  # fmt: skip


def test_the_watch_tells_what_it_watches() -> None:
    asked = {"where": "model = 'm'\n", "baseline": 21.5, "run": []}
    shown = dataclasses.replace(report({"a": 1, "b": 2}, by=("a", "b")), setting=ONE, selection=asked)
    exposition = Exposition("./site a/lake")
    registry = CollectorRegistry()
    registry.register(exposition)  # type: ignore[arg-type]
    exposition.show(ROUND, Watched(FRESH, shown))
    found = samples(generate_latest(registry).decode())
    ((_, labels),) = [key for key in found if key[0] == "tracelens_watch_info"]
    assert dict(labels) == {
        "lake": "./site a/lake", "run": "k5", "engine": "vllm", "model": "m/7B", "by": "a,b",
        "where": "model = 'm'\\n", "baseline": "21.5",
    }  # fmt: skip
    assert found["tracelens_watch_info", labels] == 1
    assert labels_of(report({"task_type": "x"}), "tracelens_watch_info") == [
        {"lake": "", "run": "", "engine": "", "model": "", "by": "task_type", "where": "", "baseline": ""}
    ]


def test_null_its_sign_the_empty_text_and_truth_are_told_apart() -> None:
    keys = [{"task_type": v} for v in (None, "(not known)", "", '""', True, "true", 0.5, datetime(2026, 5, 6, 12))]
    found = samples(page(report(*keys)))
    values = [dict(labels)["task_type"] for name, labels in found if name == "tracelens_draft_accept_ratio"]
    assert sorted(values) == sorted(
        ["(not known)", "(not known) (2)", '""', '"" (2)', "true", "true (2)", "0.5", "2026-05-06 12:00:00"]
    )


@given(st.lists(st.text(), min_size=1, max_size=4, unique=True))
def test_any_text_is_a_label_and_comes_back(values: list[str]) -> None:
    found = samples(page(report(*({"task_type": v} for v in values))))
    told = {dict(labels)["task_type"] for name, labels in found if name == "tracelens_draft_accept_ratio"}
    assert len(told) == len(values)
    # Control characters are shown as what they are, as everywhere; two that then read alike stay two labels.
    first = dict.fromkeys(visible(v.encode("utf-8", "replace").decode()) for v in values if v.strip())
    assert set(first) <= told
    assert not any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for text in told for char in text)


@given(st.lists(st.text(), min_size=1, max_size=4, unique=True))
def test_any_column_is_a_name_of_a_label(by: list[str]) -> None:
    names = label_names(by)
    assert len(set(names)) == len(by)
    assert all(re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) and not name.startswith("__") for name in names)
    shown = report(dict.fromkeys(by, "x"), by=by)
    assert samples(page(shown))["tracelens_draft_accept_ratio", tuple(sorted((name, "x") for name in names))] == 0.7194


def test_names_that_are_allowed_stay() -> None:
    assert label_names(("task_type", "my-team", "my.team", "__x", "1st")) == (
        "task_type", "my_team", "my_team_2", "by_x", "by_1st"
    )  # fmt: skip


def fetch(address: str) -> tuple[int, str, str]:
    host, _, path = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("GET", f"/{path}")
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()
    finally:
        connection.close()


def test_a_server_answers_with_the_last_look() -> None:
    with served("127.0.0.1", 0) as (exposition, address):
        exposition.show(ROUND, Watched(FRESH, report({"task_type": "code"})))
        status, kind, text = fetch(address)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        assert samples(text)["tracelens_draft_accept_ratio", (("task_type", "code"),)] == 0.7194
        exposition.show(ROUND, Watched(FRESH, report({"task_type": "chat"})))
        assert 'task_type="code"' not in fetch(address)[2]
    with pytest.raises(OSError, match="refused"):
        fetch(address)


def test_a_port_that_is_taken_and_an_address_that_is_not_ours() -> None:
    with served("127.0.0.1", 0) as (_, address):
        port = int(address.split(":")[2].split("/")[0])
        with pytest.raises(InputError, match="another port"), served("127.0.0.1", port):
            pass
    with pytest.raises(InputError, match="prometheus-host"), served("203.0.113.1", 0):
        pass


@pytest.mark.parametrize("host", ["a" * 300, "a..b", "\x00", "\udcff"])
def test_a_host_that_is_no_name(host: str) -> None:
    with pytest.raises(InputError, match=r"^--prometheus: can't serve on .* port 0: "), served(host, 0):
        pass


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").partition("/")[0].split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_readers_who_say_nothing_keep_neither_threads_nor_the_page(capfd: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with served("127.0.0.1", 0) as (_, address):
        slow = [connect(address) for _ in range(4 * serving.MOST_READERS)]
        assert fetch(address)[0] == 200
        assert threading.active_count() - before <= serving.MOST_READERS + 4
        # Those who came first had to go.
        assert slow[0].recv(1) == b""
    assert slow[-1].recv(1) == b"", "and all of them at the end"
    for one in slow:
        one.close()
    assert capfd.readouterr().err == ""


def test_a_reader_who_waits_too_long_is_sent_away(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving.Handler, "timeout", 0.2)
    with served("127.0.0.1", 0) as (_, address), connect(address) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")
        assert slow.recv(1) == b""
        assert fetch(address)[0] == 200
    assert capfd.readouterr().err == ""
