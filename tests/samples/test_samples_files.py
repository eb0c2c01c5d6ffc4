"""The samples in the repository are what the generator writes, and hold nobody's data."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sample_generator import DEFAULT_SEED
from sample_generator.build import GENERATED, build

AGAIN = "run `python samples/generate.py samples` and commit what it wrote"
ADDRESS = re.compile(rb"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("samples")
    build(out, DEFAULT_SEED)
    return out


def _files(root: Path, *folders: str) -> dict[str, Path]:
    found = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path for path in found}


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def test_same_files(samples: Path, again: Path) -> None:
    assert set(_files(samples, *GENERATED)) == set(_files(again, *GENERATED)), AGAIN


def test_same_bytes(samples: Path, again: Path) -> None:
    # Another zlib may pack the same content into other bytes; then the content has to do.
    recorded = json.loads((samples / "MANIFEST.json").read_text())
    same_zlib = recorded["zlib"] == zlib.ZLIB_RUNTIME_VERSION
    different = []
    for name, path in _files(again, *GENERATED).items():
        committed = samples / name
        same = committed.read_bytes() == path.read_bytes()
        if not same and not same_zlib and name.endswith(".gz"):
            same = _content(committed) == _content(path)
        if not same:
            different.append(name)
    assert not different, f"the generator no longer writes the committed {', '.join(different)}: {AGAIN}"
    if same_zlib:
        assert json.loads((again / "MANIFEST.json").read_text()) == recorded, AGAIN


def test_gzip_headers_have_no_time_and_no_name(samples: Path) -> None:
    packed = [path for path in _files(samples, *GENERATED, "vllm-real").values() if path.suffix == ".gz"]
    for path in packed:
        head = path.read_bytes()[:10]
        if "vllm-real" not in path.parts or path.name.startswith("responses"):
            assert head[3:8] == b"\0\0\0\0\0", path


def test_small(samples: Path) -> None:
    assert sum(path.stat().st_size for path in _files(samples, *GENERATED, "vllm-real").values()) < 2_500_000


def test_other_seed_other_data(again: Path, tmp_path: Path) -> None:
    build(tmp_path, DEFAULT_SEED + 1, scale=0.2)
    name = "vllm-site/k5/responses.jsonl.gz"
    assert _content(tmp_path / name) != _content(again / name)


def _everything(samples: Path) -> Iterator[tuple[str, bytes]]:
    for name, path in _files(samples, *GENERATED, "vllm-real").items():
        yield name, _content(path)


def test_only_documentation_addresses(samples: Path) -> None:
    for name, data in _everything(samples):
        real = name.startswith("vllm-real/")
        for address in set(ADDRESS.findall(data)):
            text = address.decode()
            assert text.startswith("192.0.2.") or text == "0.0.0.0" or (real and text == "127.0.0.1"), (name, text)


def test_no_paths_of_a_machine_and_no_texts(samples: Path) -> None:
    for name, data in _everything(samples):
        assert not re.search(rb"/(?:home|root|Users|workspace)/", data), name
        if name.endswith("jsonl.gz"):
            assert b'"text"' not in data, name
            assert b'"content"' not in data, name
        if "access" in name:
            assert set(re.findall(rb'"content": "([^"]*)"', data)) <= {b"<redacted>"}, name


def test_truth_files_cannot_be_read_as_logs(samples: Path) -> None:
    """No line of a truth file is a JSON object or a log line."""
    for name, path in _files(samples, *GENERATED, "vllm-real").items():
        if name.endswith("truth.json"):
            for line in path.read_text().splitlines()[1:]:
                assert not line.strip().startswith('{"'), name
                assert "SpecDecoding metrics" not in line, name
