from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.sources.discover import discover


def names(*paths: str | Path) -> list[str]:
    return [file.name for file in discover([str(path) for path in paths])[0]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/z.log", "b/a.log", "a/x.log", "c.log", ".hidden/h.log", "a/.h.log", "empty.log"):
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "empty.log" else name)
    return tmp_path / "root"


def test_folder(tree: Path) -> None:
    files, skipped = discover([str(tree)])
    assert [file.name for file in files] == ["c.log", "empty.log", "a/x.log", "b/a.log", "b/z.log"]
    assert skipped == []
    assert [file.size for file in files] == [5, 0, 7, 7, 7]
    assert files[0].mtime == (tree / "c.log").stat().st_mtime
    keys = [file.folder_key for file in files]
    assert keys[0] == keys[1] != keys[2] != keys[3] == keys[4]
    assert all(len(key) == 16 and str(tree) not in key for key in keys)


def test_file_glob_and_order(tree: Path) -> None:
    assert names(tree / "b" / "z.log", tree / "b" / "*.log", tree / "a") == ["z.log", "a.log", "x.log"]
    assert names(tree / "*" / "*.log") == ["x.log", "a.log", "z.log"]
    assert names(tree / "**" / "z.log") == ["z.log"]


def test_hidden_file_by_name(tree: Path) -> None:
    assert names(tree / "a" / ".h.log") == [".h.log"]


def test_a_name_with_glob_characters_is_literal_first(tree: Path) -> None:
    (tree / "log[1].txt").write_text("x")
    assert names(tree / "log[1].txt") == ["log[1].txt"]


def test_the_same_file_once(tree: Path) -> None:
    (tree / "d.log").symlink_to(tree / "c.log")
    os.link(tree / "c.log", tree / "e.log")
    assert names(tree, tree / "c.log") == ["c.log", "empty.log", "a/x.log", "b/a.log", "b/z.log"]


def test_link_loops_end(tree: Path) -> None:
    (tree / "a" / "up").symlink_to(tree)
    (tree / "self").symlink_to(tree / "self")
    files, skipped = discover([str(tree)])
    assert len(files) == 5
    assert [one.name for one in skipped] == ["self"]


def test_stdin() -> None:
    files, _ = discover(["-", "-"])
    assert [(file.path, file.name, file.mtime, file.size) for file in files] == [(None, "<stdin>", None, None)]


def test_what_is_no_file(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(tree)  # socket paths are short
    try:
        server.bind("sock")
    finally:
        os.chdir(here)
        server.close()
    (tree / "gone").symlink_to(tree / "nowhere")
    (tree / "x.parquet").write_bytes(b"PAR1")
    _, skipped = discover([str(tree), "/dev/null"])
    assert [(one.name, one.reason.split(":")[0]) for one in skipped] == [
        ("gone", "cannot be read"),
        ("pipe", "is a named pipe"),
        ("sock", "is a socket"),
        ("x.parquet", "is a Parquet file"),
        ("null", "is a character device"),
    ]


def test_lake(tree: Path) -> None:
    for name in ("sources", "rounds"):
        (tree / "lake" / name).mkdir(parents=True)
        (tree / "lake" / name / "x.log").write_text("x")
    files, skipped = discover([str(tree)])
    assert len(files) == 5
    assert [(one.name, one.reason) for one in skipped] == [("lake", "is a tracelens lake, not a log")]
    assert [one.name for one in discover([str(tree / "lake")])[1]] == ["lake"]


def test_missing(tree: Path) -> None:
    with pytest.raises(InputError, match=r"no such file or folder: .*nope"):
        discover([str(tree / "nope")])
    with pytest.raises(InputError, match=r"no file matches .*\*\.txt"):
        discover([str(tree / "*.txt")])
    with pytest.raises(InputError):
        discover([str(tree / "c.log" / "below")])
    with pytest.raises(InputError):
        discover(["nul\0byte"])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tree: Path) -> None:
    (tree / "b").chmod(0)
    (tree / "c.log").chmod(0)
    _, skipped = discover([str(tree)])
    (tree / "b").chmod(0o700)
    assert [one.name for one in skipped] == ["c.log", "b"]


def test_unreadable_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> object:
        if os.fspath(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    _, skipped = discover([str(tree)])
    assert [(one.name, one.reason) for one in skipped] == [("b", "cannot be read: Permission denied")]


def test_importing_is_cheap() -> None:
    code = (
        "import sys, tracelens.sources.discover, tracelens.sources.stream, tracelens.sources.lines, "
        "tracelens.sources.clocks; sys.exit(bool({'polars', 'pyarrow', 'numpy', 'msgspec'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_sweep_s_summary_is_passed_over_where_its_runs_are(tmp_path: Path) -> None:
    """`summary.json` beside `run=0.json` holds the same results; anywhere else it is a file like others."""
    for name in ("a/run=0.json", "a/run=1.json", "a/summary.json", "b/summary.json", "b/run-0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
    files, skipped = discover([str(tmp_path)])
    assert [f.name for f in files] == ["a/run=0.json", "a/run=1.json", "b/run-0.json", "b/summary.json"]
    assert [(s.name, s.reason) for s in skipped] == [("a/summary.json", "repeats the results of run=*.json beside it")]
    files, _ = discover([str(tmp_path / "a" / "summary.json")])
    assert [f.name for f in files] == ["summary.json"]
