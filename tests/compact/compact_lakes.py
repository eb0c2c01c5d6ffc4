"""Lakes of several days and runs, made by ingest, and every query of the folder `queries` over them."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tracelens.ingest.options import IngestOptions, Summary
from tracelens.ingest.run import ingest
from tracelens.lake.connection import connect, keep_view
from tracelens.resources import room

DAYS = ("2026-05-06", "2026-05-07", "2026-05-08")
#: The first day that keeps its single rounds, where all are rolled up.
AFTER = dt.date(2026, 5, 9)
_KEPT = ("unit_sums", "round_shapes", "priced_units", "priced_requests")


def run(lake: Path, *paths: Path | str, **options: Any) -> Summary:
    """Ingest in this process."""
    return ingest([str(p) for p in paths], lake, IngestOptions(**({"jobs": 1} | options)))


def jsonl(records: Sequence[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def rounds_of(
    run_id: str, requests: int, *, k: int, seed: int, days: Sequence[str] = DAYS, minutes: int = 40, spans: bool = True
) -> list[dict[str, Any]]:
    """Rounds of a run that drafts `k` tokens (0: plain steps); every fifth request goes over midnight with `spans`."""
    draw = random.Random(seed)
    out = []
    for i in range(requests):
        day = dt.datetime.fromisoformat(days[i % len(days)])
        begin = dt.timedelta(hours=10, minutes=draw.randrange(minutes), seconds=draw.randrange(60))
        if spans and i % 5 == 0 and i % len(days) < len(days) - 1:
            begin = dt.timedelta(hours=23, minutes=59, seconds=50)
        out += list(_request(run_id, i, k, day + begin, draw))
    return out


def _request(run_id: str, i: int, k: int, ts: dt.datetime, draw: random.Random) -> Iterator[dict[str, Any]]:
    task, ease, context = ("code", "chat", "math")[i % 3], draw.uniform(0.4, 0.9), draw.choice([100, 700, 2100])
    base = {"record": "round", "run_id": run_id, "engine": "acme", "request_id": f"{run_id}-req-{i:05d}"}
    for index in range(draw.randrange(8, 30)):
        ts += dt.timedelta(milliseconds=draw.randrange(400, 2500))
        drafted = 0 if not k or draw.random() < 0.1 else draw.choice([k, k, k, max(1, k - 1)])
        accepted = next((j for j in range(drafted) if draw.random() > ease), drafted)
        batch = draw.choice([1, 2, 3, 4, 7])
        row = {
            **base, "round_index": index, "ts": f"{ts.isoformat()}Z", "drafted": drafted, "accepted": accepted,
            "emitted": max(1, accepted + 1 - (draw.random() < 0.05)), "batch_size": batch,
            "context_len": context + 4 * index,
            "step_us": 9000 + 900 * drafted + draw.randrange(3000), "has_prefill": draw.random() < 0.05,
            "replica": str(i % 2),
        }  # fmt: skip
        if draw.random() < 0.8:
            row |= {"draft_us": 700 * drafted + draw.randrange(200), "target_us": 6000 + 300 * drafted}
        if i % 3:  # the others know it from their request alone
            row["task_type"] = task
        if i % 7 == 0:
            row["temperature"] = 0.5
        yield row


def requests_of(rounds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the records of these requests say: decode time and class."""
    found: dict[str, dict[str, Any]] = {}
    for row in rounds:
        i = int(row["request_id"][-5:])
        one = found.setdefault(row["request_id"], {
            "record": "request", "run_id": row["run_id"], "engine": "acme", "request_id": row["request_id"],
            "task_type": ("code", "chat", "math")[i % 3], "temperature": 0.5, "output_tokens": 1, "decode_us": 0,
        })  # fmt: skip
        one["output_tokens"] += row["emitted"]
        one["decode_us"] += row["step_us"]
        one["ts_end"] = row["ts"]
    return list(found.values())


def site(folder: Path, *, requests: int = 40, seed: int = 7) -> Path:
    """Logs of two drafting runs and a plain one, a file a run and day, and their requests; the lake beside them."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    for number, (name, k) in enumerate((("k3", 3), ("k5", 5), ("plain", 0))):
        rounds = rounds_of(name, requests, k=k, seed=seed + number)
        for day in DAYS:
            (logs / f"{name}-{day}.jsonl").write_text(jsonl([r for r in rounds if r["ts"].startswith(day)]))
        (logs / f"{name}-requests.jsonl").write_text(jsonl(requests_of(rounds)))
    anonymous = [{k: v for k, v in r.items() if k not in ("request_id", "round_index")} for r in rounds_of(
        "anonymous", 12, k=2, seed=seed + 9)]  # fmt: skip
    (logs / "anonymous.jsonl").write_text(jsonl(anonymous))
    sampled = [r | {"weight": 10.0} for r in rounds_of("sampled", 12, k=4, seed=seed + 10)]
    (logs / "sampled.jsonl").write_text(jsonl(sampled))
    lake = folder / "lake"
    plain = sorted(logs.glob("plain*"))
    run(lake, *plain, role="baseline")
    run(lake, *(p for p in sorted(logs.iterdir()) if p not in plain))
    return lake


def answers(lake: Path, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Rows of every query, or of some."""
    out = {}
    con = connect(lake, keep=True)
    try:
        for name in _KEPT if len(names) != 1 else ():
            keep_view(con, name)
        for name in names or sorted(p.name[:-4] for p in (room("queries")).iterdir() if p.name != "views.sql"):
            cursor = con.execute((room("queries") / f"{name}.sql").read_text(encoding="utf-8"))
            columns = [c[0] for c in cursor.description or ()]
            out[name] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    finally:
        con.close()
    return out
