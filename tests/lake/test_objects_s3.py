"""A lake on S3: what every command says of it is what it says of a folder; moto's server on loopback is the store."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.sql import ask
from tracelens.cli import run as command
from tracelens.errors import InputError
from tracelens.ingest.options import IngestOptions
from tracelens.ingest.run import ingest
from tracelens.lake import connection, mirror, objects, whole
from tracelens.lake.bucket import Bucket
from tracelens.lake.bucket_errors import AwayError
from tracelens.lake.place import lake_path
from tracelens.lake.snapshot import reading
from tracelens.resources import room

pytest.importorskip("s3fs")
pytest.importorskip("moto.server")
from tracelens.lake.lakefs import troubles

KEYS = {"AWS_ACCESS_KEY_ID": "AKIDTESTKEY", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class Server:
    """moto, and what it was asked."""

    url: str
    log: Path

    def requests(self) -> list[str]:
        return re.findall(r'"(?:\x1b\[[0-9;]*m)*((?:GET|PUT|POST|HEAD|DELETE) /\S*) HTTP', self.log.read_text())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = Server(f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("moto") / "log")
    with found.log.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
        try:
            _wait(found.url, process)
            urllib.request.urlopen(urllib.request.Request(f"{found.url}/bucket", method="PUT")).close()
            yield found
        finally:
            process.terminate()
            process.wait()


def _wait(url: str, process: Any) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def lake(server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    objects.objects_of.cache_clear()
    yield lake_path(f"s3://bucket/{re.sub('[^a-z]', '-', request.node.name)}")
    objects.objects_of.cache_clear()


def test_a_lake_on_s3_gives_a_folder_s_figures(lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Made, labelled, ingested again with an option, and asked by the commands that read it."""
    site = room("samples") / "vllm-site"
    labels = tmp_path / "labels.csv"
    labels.write_text("request_id,team\nchatcmpl-none,a\n")
    answers = []
    for place in (tmp_path / "lake", lake):
        told = []
        for arguments in (
            ["ingest", str(site / "k5"), "--run", "k5", "--labels", str(site / "labels.csv")],
            ["ingest", str(site / "baseline" / "server.log"), "--run", "off", "--role", "baseline", "--json"],
            ["ingest", str(site / "k5"), "--run", "k5"],
            ["label", str(labels)],
            ["report", "--run", "k5", "--baseline", "off", "--json"],
            ["query", "select surface, count(*) as n from facts group by 1 order by 1", "--json"],
        ):
            code = command([*arguments, "--lake", str(place)])
            out, err = capfd.readouterr()
            told.append((code, re.sub(r'"seconds": [0-9.e-]+', "", out.replace(str(place), "LAKE")), err))
        answers.append(told)
    local, remote = answers
    for one, other in zip(local, remote, strict=True):
        assert one == other
    assert [code for code, *_ in local[:3]] == [0, 0, 0]
    assert json.loads(local[4][1])
    assert "already in the lake" in local[2][1]


def test_a_lost_object_is_told_with_its_remedy_which_mends_the_lake(
    lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = '{{"request_id": "{0}-{1}", "ts": "2026-05-01T10:00:{1:02d}Z", "accepted": 1, "drafted": 3}}\n'
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(line.format(name, i) for i in range(20)))
        assert command(["ingest", str(tmp_path / f"{name}.jsonl"), "--lake", str(lake)]) == 0
    [lost, _] = sorted(key for key in Bucket(lake).list("rounds/date=2026-05-01"))
    Bucket(lake).delete(lost)
    objects.objects_of.cache_clear()
    capfd.readouterr()
    assert command(["report", "--lake", str(lake)]) == 3
    told = capfd.readouterr().err
    assert lost in told
    assert f"`tracelens forget --missing --lake {lake}`" in told
    assert command(["forget", "--missing", "--json", "--lake", str(lake)]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    [gone] = [source["name"] for source in json.loads(out)["sources"]]
    assert command(["report", "--lake", str(lake)]) == 0
    assert command(["ingest", str(tmp_path / gone), "--lake", str(lake)]) == 0
    capfd.readouterr()
    assert command(["query", "select count(*) as n from rounds", "--json", "--lake", str(lake)]) == 0
    assert json.loads(capfd.readouterr().out) == [{"n": 40}]


def rounds(folder: Path) -> Path:
    """Three days of rounds, the days apart in files of some size."""
    folder.mkdir()
    for day in (1, 2, 3):
        lines = (
            {"request_id": f"r{day}-{i // 20}", "ts": f"2026-05-0{day}T10:00:{i % 60:02d}.{i:06d}Z", "accepted": i % 4,
             "drafted": 3, "run_id": "k3", "draft_us": 1000 + (i * 7919) % 977, "target_us": 9000 + (i * 104729) % 9973}
            for i in range(3000)
        )  # fmt: skip
        (folder / f"day{day}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.long
def test_a_day_that_a_query_leaves_out_costs_its_footer(
    lake: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest([str(rounds(tmp_path / "logs"))], lake, IngestOptions(jobs=1))
    monkeypatch.setattr(connection, "FEW", -1)
    monkeypatch.setattr(connection, "TINY", 0)  # small lakes are read whole, once
    monkeypatch.setattr(mirror, "TINY", 0)
    monkeypatch.setattr(mirror, "TAIL", 16384)
    objects.objects_of.cache_clear()
    before = len(server.requests())
    _, found = ask(lake, "select count(*), sum(accepted) from rounds where date = date '2026-05-02'")
    assert list(found) == [(3000, 4500)]
    asked = server.requests()[before:]
    ours = [re.search(r"/rounds/date=(2026-05-\d\d)/", line) for line in asked]
    by_day: dict[str, int] = {}
    for day in (match[1] for match in ours if match):
        by_day[day] = by_day.get(day, 0) + 1
    # The end of every file, and the rows of one.
    assert by_day["2026-05-01"] == by_day["2026-05-03"] == 1
    assert by_day["2026-05-02"] > 1
    here = objects.objects_of(lake).mirror.folder
    assert [p.parent.name for p in here.glob("rounds/date=2026-05-*/*.parquet")] == ["date=2026-05-02"]
    reads_nothing_else(lake, tmp_path)
    _, found = ask(lake, "select date, sum(accepted) from rounds group by 1 order by 1")
    assert [n for _, n in found] == [4500, 4500, 4500]
    again = len(server.requests())
    _, found = ask(lake, "select sum(accepted) from rounds")
    assert list(found) == [(13500,)]
    assert not any("/rounds/" in line for line in server.requests()[again:])  # an object is fetched once


def test_a_bucket_that_goes_away_in_the_middle_of_a_query_is_told(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DuckDB makes an error of its own of it, with a traceback."""
    (tmp_path / "a.jsonl").write_text(
        '{"request_id": "r", "ts": "2026-05-01T11:00:00Z", "accepted": 1, "drafted": 3}\n'
    )
    ingest([str(tmp_path / "a.jsonl")], lake, IngestOptions(jobs=1))
    monkeypatch.setattr(mirror, "TAIL", 0)
    monkeypatch.setattr(mirror, "TINY", 0)
    objects.objects_of.cache_clear()
    fetch = Bucket.fetch

    def away(bucket: Bucket, key: str, to: Path) -> None:
        if key.startswith("rounds/"):
            raise AwayError("the bucket is away")
        fetch(bucket, key, to)

    monkeypatch.setattr(Bucket, "fetch", away)
    assert command(["query", "select sum(accepted) from rounds", "--lake", str(lake)]) == 3
    assert capsys.readouterr().err == "Error: the bucket is away\n"
    assert troubles == []


def reads_nothing_else(lake: Path, tmp_path: Path) -> None:
    """A connection with files here and files that are still to come: no other file, no other bucket, no writing."""
    import duckdb

    (tmp_path / "secret.csv").write_text("a\n1\n")
    con = connection.connect(lake, grouped=False)
    names = con.execute("select unnest(getvariable('lake_files')['rounds'])").fetchall()
    assert any(name.startswith("tracelens-lake://") for (name,) in names)
    for path in (tmp_path / "secret.csv", "tracelens-lake://../secret.csv", "tracelens-lake:///etc/passwd",
                 f"{lake}/runs/empty.parquet", "s3://other/x", "memory://x"):  # fmt: skip
        with pytest.raises(duckdb.Error):
            con.execute("select * from read_text($1)", [str(path)]).fetchall()
    for target in (tmp_path / "out.csv", "tracelens-lake://out.csv"):
        with pytest.raises(duckdb.Error):
            con.execute(f"copy (select 1) to '{target}'")
    assert con.execute("select count(*) from rounds").fetchone() == (9000,)
    con.close()


@pytest.mark.long
def test_two_processes_into_one_lake(lake: Path, tmp_path: Path) -> None:
    logs = rounds(tmp_path / "logs")
    script = "import sys; from tracelens.cli import main; main(sys.argv[1:])"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, "ingest", "--jobs", "1", "--lake", str(lake), *map(str, paths)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for paths in ((logs / "day1.jsonl", logs / "day2.jsonl"), (logs / "day2.jsonl", logs / "day3.jsonl"))
    ]  # fmt: skip
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    _, found = ask(lake, "select count(*), count(distinct source_id) from rounds")
    assert list(found) == [(9000, 3)]
    _, found = ask(lake, "select count(*), count(distinct sha256) from sources")
    assert list(found) == [(3, 3)]


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("s3://no-such-bucket/lake", {}, "no such bucket"),
        ("s3://bucket/nothing", {}, "no lake at s3://bucket/nothing: run `tracelens ingest"),
        ("s3://bucket/lake", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, r"can't be reached .*try again"),
        ("s3://bucket/lake", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, r"no credentials .*~/\.aws"),
    ],
)
def test_a_bucket_that_can_t_be_used_is_told_in_words(
    lake: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, change: dict[str, str], told: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for key, value in change.items():
        monkeypatch.setenv(key, value) if value else monkeypatch.delenv(key)
    with pytest.raises(InputError, match=told) as error, reading(lake_path(name)):
        whole.check(lake_path(name))
    assert not any(value in str(error.value) for value in (*KEYS.values(), "127.0.0.1"))


def test_what_is_not_allowed_is_told_without_the_keys(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    async def refused(*_: Any, **__: Any) -> None:
        raise PermissionError("The AWS Access Key Id AKIDTESTKEY is not allowed: signature a-secret")

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refused)
    with pytest.raises(InputError, match="may not be used with these credentials") as error, reading(lake):
        pass
    assert "AKIDTESTKEY" not in str(error.value)
    assert "a-secret" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.long
def test_nothing_of_a_process_stays_on_this_machine(lake: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    script = (
        "import sys, glob, tempfile; from tracelens.cli import run\n"
        "run(['ingest', sys.argv[1], '--lake', sys.argv[2]]); run(['query', 'from runs', '--lake', sys.argv[2]])\n"
        "found = glob.glob(tempfile.gettempdir() + '/tracelens-lake-*/lake/**/*.parquet', recursive=True)\n"
        "sys.exit(0 if found else 1)"
    )
    logs = tmp_path / "a.jsonl"
    logs.write_text('{"request_id": "r", "ts": "2026-05-01T11:00:00Z", "accepted": 1, "drafted": 3, "run_id": "k3"}\n')
    done = subprocess.run([sys.executable, "-c", script, str(logs), str(lake)], env=environment, capture_output=True,
                          text=True, check=False, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("tracelens-lake-*")) == []
