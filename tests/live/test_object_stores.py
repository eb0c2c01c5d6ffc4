"""A lake on Google Cloud Storage and on Azure gives a folder's figures; emulators on loopback are the stores.

Skipped without them, so the gate does not run it (Azurite is an npm package):

    pip install -e '.[dev,gcs,azure]' gcp-storage-emulator && npm install azurite
    PATH="$PWD/node_modules/.bin:$PATH" pytest tests/live/test_object_stores.py -n 0
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens.analysis.sql import ask
from tracelens.cli import run as command
from tracelens.lake import objects
from tracelens.lake.bucket import Bucket
from tracelens.lake.place import lake_path
from tracelens.resources import room

# The libraries leave files and sockets to the garbage collector.
pytestmark = pytest.mark.filterwarnings("default")

#: Of Azurite, in its documentation: no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def started(arguments: list[str], port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None
        assert time.monotonic() < until
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def azure(folder: Path, patch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    pytest.importorskip("adlfs")
    blob = pytest.importorskip("azure.storage.blob")
    azurite = shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("no azurite-blob on the path")
    port = free_port()
    options = ["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location", str(folder)]
    process = started([azurite, "--blobPort", str(port), *options], port)
    where = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/{ACCOUNT};"
    )
    blob.BlobServiceClient.from_connection_string(where).create_container("bucket")
    patch.setenv("AZURE_STORAGE_CONNECTION_STRING", where)
    return process


def gcs(folder: Path, patch: pytest.MonkeyPatch) -> subprocess.Popen[bytes]:
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    port = free_port()
    patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    return started([sys.executable, str(Path(__file__).with_name("gcs_server.py")), str(port)], port)


@pytest.fixture(scope="module", params=["az", "gs"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        start = azure if request.param == "az" else gcs
        process = start(tmp_path_factory.mktemp(request.param), patch)
        try:
            yield request.param
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def lake(store: str, request: pytest.FixtureRequest) -> Iterator[Path]:
    objects.objects_of.cache_clear()
    yield lake_path(f"{store}://bucket/{re.sub('[^a-z]', '-', request.node.name)}")
    objects.objects_of.cache_clear()


def test_what_a_lake_asks_of_its_bucket(lake: Path, tmp_path: Path) -> None:
    bucket = Bucket(lake)
    assert bucket.list() == {}
    assert bucket.create("a/one", b"first")
    assert bucket.create("a/one", b"first")  # the same request once more, as its answer was lost
    assert not bucket.create("a/one", b"second")
    assert bucket.get("a/one") == b"first"
    bucket.put("a/two", b"0123456789")
    assert bucket.tail("a/two", 4, 7) == b"456"
    (tmp_path / "up").write_bytes(b"x" * 3_000_000)
    bucket.upload("b/three", tmp_path / "up")
    bucket.fetch("b/three", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()
    seen = bucket.list()
    assert {key: one.size for key, one in seen.items()} == {"a/one": 5, "a/two": 10, "b/three": 3_000_000}
    assert all(abs(one.written - time.time()) < 600 for one in seen.values())
    assert set(bucket.list("a")) == {"a/one", "a/two"}
    bucket.move("a/two", "c/two")
    bucket.move("a/two", "c/two")  # once more, as nobody knew that it was done
    assert (bucket.get("c/two"), set(bucket.list("a"))) == (b"0123456789", {"a/one"})
    bucket.delete("c/two")
    bucket.delete("c/two")
    for gone in ("c/two", "a/none"):
        with pytest.raises(FileNotFoundError):
            bucket.get(gone)


def test_a_bucket_s_lake_gives_a_folder_s_figures(
    lake: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site = room("samples") / "vllm-site"
    answers = []
    for place in (tmp_path / "lake", lake):
        told = []
        for arguments in (
            ["ingest", str(site / "k5"), "--run", "k5", "--labels", str(site / "labels.csv")],
            ["ingest", str(site / "baseline" / "server.log"), "--run", "off", "--role", "baseline", "--json"],
            ["ingest", str(site / "k5"), "--run", "k5"],
            ["ingest", str(room("samples") / "canonical" / "rounds.jsonl"), "--run", "other"],
            ["report", "--run", "k5", "--baseline", "off", "--json"],
            ["forget", "rounds.jsonl"],
            ["compact"],
            ["report", "--run", "k5", "--baseline", "off", "--json"],
            ["query", "select surface, count(*) as n from facts group by 1 order by 1", "--json"],
        ):
            code = command([*arguments, "--lake", str(place)])
            out, err = capfd.readouterr()
            if arguments[0] not in ("compact", "forget"):  # these tell of files, which a bucket names otherwise
                out = re.sub(r'"seconds": [0-9.e-]+', "", out.replace(str(place), "LAKE"))
                told.append((code, out, err))
            assert code == 0, (arguments, err)
        answers.append(told)
    local, remote = answers
    for one, other in zip(local, remote, strict=True):
        assert one == other
    assert json.loads(local[-1][1])


def test_two_processes_into_one_lake(lake: Path, tmp_path: Path) -> None:
    for day in range(3):
        lines = (
            json.dumps({"record": "round", "engine": "e", "request_id": f"r-{day}-{i // 20}", "round_index": i % 20,
                        "ts": 1_788_220_800 + 86_400 * day + i, "drafted": 4, "accepted": i % 5})
            for i in range(3000)
        )  # fmt: skip
        (tmp_path / f"{day}.jsonl").write_text("\n".join(lines) + "\n")
    script = "import sys; from tracelens.cli import main; main(sys.argv[1:])"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, "ingest", "--jobs", "1", "--lake", str(lake),
             *(str(tmp_path / f"{day}.jsonl") for day in days)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for days in ((0, 1), (1, 2))
    ]  # fmt: skip
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    _, found = ask(lake, "select count(*), count(distinct source_id) from rounds")
    assert list(found) == [(9000, 3)]
    _, found = ask(lake, "select count(*), count(distinct sha256) from sources")
    assert list(found) == [(3, 3)]


def test_a_bucket_that_is_not_there_is_told(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["report", "--lake", f"{store}://no-such-bucket/lake"]) == 3
    err = capfd.readouterr().err
    assert re.search(r"no such bucket|no lake at", err), err
    assert KEY not in err
