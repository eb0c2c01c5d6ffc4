"""Many small files are spread over processes, too."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from ingest_logs import interval

from tracelens.ingest import run
from tracelens.ingest.options import IngestOptions


@pytest.mark.parametrize(("files", "spread"), [(63, False), (64, True)])
def test_files_count_beside_their_bytes(files: int, spread: bool, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for i in range(files):
        (logs / f"{i}.log").write_text("x\n" if i else interval("12:00:00") + "\n")
    with patch("concurrent.futures.ProcessPoolExecutor", side_effect=ZeroDivisionError):
        options = IngestOptions(year=2026, jobs=2)
        if spread:
            with pytest.raises(ZeroDivisionError):
                run.ingest([str(logs)], tmp_path / "lake", options)
        else:
            assert run.ingest([str(logs)], tmp_path / "lake", options).rows["windows"] == 1
