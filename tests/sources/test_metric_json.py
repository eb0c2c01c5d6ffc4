"""Metrics as JSON: every form gives the samples that it holds, and says what it cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.engines.base import JsonRecord, Reject
from tracelens.sources import metric_json
from tracelens.sources.exposition import label

LABELS = {"__name__": "vllm:a_total", "engine": "0", "instance": "10.0.0.1:8000"}
TEXT = 'engine="0",instance="10.0.0.1:8000"'
MATRIX = {"metric": LABELS, "values": [[1795953254.992, "3"], [1795953269, "NaN"]]}
OTHERS = [
    {"metric": {"__name__": "up"}, "values": [[1, "1"]]},
    {"metric": {"__name__": "vllm:h_bucket", "le": "1"}, "values": [[1, "1"]]},
]
EXPORT = {"metric": LABELS, "values": [3, None, 5.5], "timestamps": [1795953254992, 1795953269992, 1795953284992]}


def document(*series: Any, kind: str = "matrix") -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(series)}}


def taken(*values: Any) -> tuple[pl.DataFrame, list[Reject]]:
    rejects: list[Reject] = []
    records = [JsonRecord(i, 100 * i, None, None, v) for i, v in enumerate(values, 1)]
    assert all(metric_json.holds(v) for v in values)
    return metric_json.samples(records, ["vllm:"], rejects), rejects


def cut(text: str, sizes: Sequence[int] = ()) -> tuple[pl.DataFrame, list[Reject]]:
    series = metric_json.Series(["vllm:"])
    data, at, frames = text.encode(), 0, []
    for size in [*sizes, len(data)]:
        frames.append(series.feed(data[at : at + size]))
        at += size
    series.finish()
    return pl.concat(frames), series.problems


def test_a_range_query() -> None:
    frame, rejects = taken(document(MATRIX, *OTHERS))
    assert frame.select("line", "scrape", "stamp", "stream", "name", "labels").rows() == [
        (1, None, "1795953254.992", None, "vllm:a_total", TEXT),
        (1, None, "1795953269.000", None, "vllm:a_total", TEXT),
    ]
    assert frame["value"][0] == 3.0
    assert frame["value"].is_nan().to_list() == [False, True]
    assert rejects == []


def test_an_instant_query() -> None:
    frame, _ = taken(document({"metric": LABELS, "value": [1795953254.9921, "3e2"]}, kind="vector"))
    assert frame.select("stamp", "value").rows() == [("1795953254.992", 300.0)]


def test_an_export_of_victoriametrics() -> None:
    frame, rejects = taken(EXPORT, {**EXPORT, "metric": {"__name__": "up"}})
    assert frame.select("line", "stamp", "labels", "value").rows() == [
        (1, "1795953254992", TEXT, 3.0), (1, "1795953269992", TEXT, None), (1, "1795953284992", TEXT, 5.5),
    ]  # fmt: skip
    assert rejects == []


def test_a_scrape_of_aiperf() -> None:
    record = {
        "endpoint_url": "http://10.0.0.1:8000/metrics",
        "timestamp_ns": 1795953254992000000,
        "endpoint_latency_ns": 3,
        "metrics": {
            "vllm:a": [{"labels": {"engine": "0"}, "value": 3.0}, {"value": 4}],
            "vllm:h": [{"labels": {"engine": "0"}, "histogram": {"0.1": 1.0}, "sum": 2.5, "count": 2.0}],
            "up": [{"value": 1.0}],
        },
    }
    frame, rejects = taken(record)
    assert frame.select("stamp", "name", "labels", "value").rows() == [
        ("1795953254992000000", "vllm:a", 'engine="0"', 3.0),
        ("1795953254992000000", "vllm:a", "", 4.0),
        ("1795953254992000000", "vllm:h_sum", 'engine="0"', 2.5),
        ("1795953254992000000", "vllm:h_count", 'engine="0"', 2.0),
    ]
    assert set(frame["stream"]) == {"http://10.0.0.1:8000/metrics"}  # told apart by it, and numbered by the engine
    assert rejects == []


def test_a_summary_of_aiperf_is_the_growth_of_its_counters() -> None:
    url = "http://10.0.0.1:8000/metrics"
    series = {"endpoint_url": url, "labels": {"engine": "0"}}
    span = {"first_update_ns": 1795953254000000000, "last_update_ns": 1795953314000000000}
    value = {
        "summary": {"endpoint_info": {url: span}},
        "metrics": {
            "vllm:a": {"type": "counter", "series": [{**series, "stats": {"total": 9.0, "rate": 0.3}}]},
            "vllm:h": {"type": "histogram", "series": [{**series, "stats": {"count": 4, "sum": 2.5}}]},
            "vllm:g": {"type": "gauge", "series": [{**series, "stats": {"avg": 4.0}}]},
            "vllm:i": {"type": "counter", "series": [{**series, "endpoint_url": "other", "stats": {"total": 1.0}}]},
        },
    }  # fmt: skip
    frame, rejects = taken(value)
    begun, ended = "1795953254000000000", "1795953314000000000"
    assert frame.select("stamp", "name", "value").rows() == [
        (begun, "vllm:a", 0.0), (ended, "vllm:a", 9.0), (begun, "vllm:h_count", 0.0), (ended, "vllm:h_count", 4.0),
        (begun, "vllm:h_sum", 0.0), (ended, "vllm:h_sum", 2.5),
    ]  # fmt: skip
    assert rejects == []


@pytest.mark.parametrize(
    "series",
    [
        {"metric": {"engine": "0"}, "values": [[1795953254, "3"]]},
        {"metric": {}, "value": [1795953254, "3"]},
        {"metric": {"__name__": ""}, "values": []},
    ],
)
def test_a_result_of_a_function_says_so(series: Any) -> None:
    frame, rejects = taken(document(series))
    assert frame.height == 0
    assert [(r.line, r.offset) for r in rejects] == [(1, 100)]
    assert "without the metric's name" in rejects[0].reason


@pytest.mark.parametrize(
    "series",
    [
        3,
        {"metric": 3, "values": []},
        {"metric": LABELS},
        {"metric": LABELS, "values": 3},
        {"metric": LABELS, "values": [[1]]},
        {"metric": LABELS, "values": [["x", "3"]]},
        {"metric": LABELS, "values": [[1, "three"]]},
        {"metric": LABELS, "values": [1], "timestamps": []},
        {"metric": LABELS, "values": [1], "timestamps": ["x"]},
        {"metric": LABELS, "values": [1], "timestamps": [1e999]},
        {"metric": LABELS, "histograms": [[1, {"count": "3"}]]},
    ],
)
def test_a_broken_series_is_counted(series: Any) -> None:
    frame, rejects = taken(document(series, MATRIX))
    assert frame.height == 2
    assert [r.reason for r in rejects] == ["broken series: no list of stamps and numbers"]


def test_broken_scrapes_are_counted() -> None:
    record = {"endpoint_url": "u", "timestamp_ns": 1, "metrics": {"vllm:a": [3, {"value": True}, {}], "vllm:b": 4}}
    frame, rejects = taken(record, {**record, "timestamp_ns": "x"})
    assert frame.height == 0
    assert [(r.line, r.reason) for r in rejects] == [
        (1, "broken sample: no object"), (1, "broken sample: no object"), (2, "broken scrape: no stamp or no metrics"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"metrics": {"speculative_decoding": {"num_spec_steps": 3}}, "id": "x"},
        {"metrics": 3, "endpoint_url": "u", "timestamp_ns": 1},
        {"data": [], "object": "list"},
        {"drafted": 3, "accepted": 2, "metric": "x"},
        {"metric": {"a": 1}, "name": "x"},
    ],
)
def test_other_records_are_left_alone(value: Any) -> None:
    assert not metric_json.holds(value)


# -- whole files ------------------------------------------------------------------------------------------------------


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


FILES = {
    "document": compact(document(MATRIX, *OTHERS, MATRIX)),
    "documents, a line each": f"{compact(document(MATRIX))}\n{compact(document(MATRIX, *OTHERS))}\n",
    "list of series": compact([MATRIX, *OTHERS, MATRIX]),
    "series, a line each": "\n".join(compact(s) for s in (MATRIX, *OTHERS, MATRIX)),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("sizes", [[], [1] * 400, [7] * 90, [200]])
def test_a_file_of_series_is_cut_at_its_series(name: str, sizes: list[int]) -> None:
    assert metric_json.looks(FILES[name].encode())
    frame, problems = cut(FILES[name], sizes)
    one, _ = taken(document(MATRIX))
    columns = [c for c in one.columns if c != "line"]
    assert frame.select(columns).equals(pl.concat([one, one]).select(columns))
    assert problems == []


def test_lines_and_places_of_what_is_broken() -> None:
    broken = compact({"metric": {"__name__": "vllm:b"}, "values": [["x", "1"]]})
    nameless = compact({"metric": {"a": "b"}, "values": [[1, "1"]]})
    foreign = '{"metric":{"__name__":"up"},"values":[oops]}'
    text = "\n".join(
        [compact(EXPORT), broken, foreign, nameless, compact(EXPORT), '{"metric":{"__name__":"vllm:c","va']
    )
    for sizes in ([], [50] * 9):
        frame, problems = cut(text, sizes)
        assert frame["line"].to_list() == [1, 1, 1, 5, 5, 5]
        assert [(p.line, text[p.offset : p.offset + 10] if p.offset is not None else "") for p in problems] == [
            (2, '{"metric":'), (4, '{"metric":'), (6, '{"metric":'),
        ]  # fmt: skip
        assert [p.reason.split(":")[0] for p in problems] == [
            "broken series",
            "a query result without the metric's name (rate, sum and other functions drop it)",
            "series cut off by the end of the file",
        ]


def test_a_series_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_json, "_LONGEST", 100)
    text = '{"metric":{"__name__":"vllm:b","x":"' + "y" * 300 + compact(EXPORT)
    frame, problems = cut(text, [60] * 4)
    assert frame["name"].to_list() == ["vllm:a_total"] * 3
    assert [p.reason for p in problems] == ["series longer than 100 bytes"]


@pytest.mark.parametrize(
    "head",
    [
        "",
        "{}",
        json.dumps(document(MATRIX), indent=1),  # a document of several lines is decoded as a whole
        compact({"metric": "x", "value": 3}),
        compact({"status": "success", "data": []}),
        "vllm:a 1",
    ],
)
def test_files_that_are_read_otherwise(head: str) -> None:
    assert not metric_json.looks(head.encode())


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([compact(EXPORT), '{"metric":', "]}", "\n", compact(OTHERS[0]), "x" * 40]), max_size=6),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_cuts_make_no_difference_and_junk_never_raises(parts: list[str], sizes: list[int]) -> None:
    text = "".join(parts)
    frame, problems = cut(text, sizes)
    whole, all_problems = cut(text)
    assert frame.rows() == whole.rows()
    assert problems == all_problems


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "engine"]), st.text(st.characters(exclude_categories=["Cs"]))))
def test_labels_are_written_as_they_are_read(labels: dict[str, str]) -> None:
    text = metric_json.labels_text({**labels, "__name__": "x"})
    frame = pl.DataFrame({"labels": [text]}).select(label(n).alias(n) for n in ("a", "b", "engine"))
    assert {k: v for k, v in frame.row(0, named=True).items() if v is not None} == labels


def test_labels_of_something_else() -> None:
    assert metric_json.labels_text(None) == metric_json.labels_text([1]) == ""


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
@pytest.mark.parametrize("label", ["a]}b", "]}]}", 'q\\"]}', "\\\\", "}", '}\\",\\"values\\":[1]}', "{[", "é]}"])
def test_a_label_may_read_like_an_end(label: str, size: int) -> None:
    line = '{"metric":{"__name__":"vllm:a","x":"%s"},"values":[1,2],"timestamps":[1000,2000]}\n'
    text = (line % label + line % "plain" + line % label).encode()
    series = metric_json.Series(["vllm:"])
    frames = [series.feed(text[i : i + size]) for i in range(0, len(text), size)]
    series.finish()
    assert series.problems == []
    assert sum(f.height for f in frames) == 6


def test_a_broken_series_costs_no_other_one() -> None:
    good = '{"metric":{"__name__":"vllm:a"},"values":[1],"timestamps":[1000]}'
    broken = (
        '{"metric":{"__name__":"vllm:a,"values":[1],"timestamps":[1]}',
        '{"metric":null,"values":[1]}',
        '{"metric":',
    )
    for between in ("\n", ","):
        for bad in broken:
            series = metric_json.Series(["vllm:"])
            frame = series.feed(between.join([good, bad, good, bad, good]).encode())
            series.finish()
            assert (frame.height, len(series.problems)) == (3, 2), bad
