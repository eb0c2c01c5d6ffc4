"""Dependencies have lower bounds that can be installed alone, and licences that may go along; what SECURITY.md says."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import canaries
import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").is_dir(), reason="benchmarks are beside the package, not in it"
)


def test_every_dependency_has_a_lower_bound() -> None:
    from benchmarks.lowest import lowest

    found = lowest()
    assert len(found) >= 12
    assert all(re.fullmatch(r"[\w.-]+==\d[\w.]*(; .*)?", text) for text in found)
    assert "duckdb==2.0" in found


def test_supported_pythons_are_told_alike() -> None:
    from benchmarks.lowest import supported

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    first, last = supported()[0], supported()[-1]
    assert project["project"]["requires-python"] == f">={first}"
    assert project["tool"]["mypy"]["python_version"] == first
    assert f"Python {first}–{last};" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_pythons_are_found_that_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version manager puts commands on the search path that only say that their version is not switched on."""
    from benchmarks.lowest import found, version

    here = "{}.{}".format(*sys.version_info)
    assert version(sys.executable) == here
    kept = tmp_path / "versions" / "3.99.2" / "bin" / "python"
    for path, text in ((tmp_path / "python3.99", "exit 127"), (kept, "echo 3.99")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert version(tmp_path / "python3.99") is None
    assert version(tmp_path / "nothing") is None
    assert found(here) == Path(sys.executable)
    assert found("3.99") == kept
    assert found("3.98") is None


def test_licences_may_go_along() -> None:
    from benchmarks.supply import ALLOWED, installed, licence

    found = installed()
    assert {"duckdb", "polars", "numpy", "prometheus-client"} <= set(found)
    strange = {name: licence(one) for name, one in found.items() if not any(w in licence(one) for w in ALLOWED)}
    assert strange == {}


def test_security_says_what_the_tests_do() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert f"{len(canaries.SECRETS)} kinds" in text
    assert "LAKE.redact-salt" in text
    for module in re.findall(r"`python -m ([\w.]+)", text):
        assert (ROOT / Path(*module.split(".")).with_suffix(".py")).is_file()


def test_an_audit_that_asked_nobody_says_so() -> None:
    """pip-audit itself says then that no weakness is known, and ends well."""
    import json

    from benchmarks.supply import audited

    skipped = {"name": "polars", "skip_reason": "not found on PyPI and could not be audited"}
    nothing = "pip-audit reached no database: known weaknesses were not looked for"
    assert audited(json.dumps({"dependencies": [skipped], "fixes": []}), ["polars"]) == (nothing, 0)
    assert audited("", ["polars"]) == (nothing, 0)
    other = {"name": "pip", "version": "1", "vulns": [{"id": "CVE-1"}]}
    assert audited(json.dumps({"dependencies": [skipped, other]}), ["polars"]) == (nothing, 0)
    fine, weak = ({"name": n, "version": "1", "vulns": v} for n, v in (("duckdb", []), ("a.b", [{"id": "CVE-2"}])))
    text, count = audited(json.dumps({"dependencies": [skipped, fine, weak]}), ["polars", "duckdb", "a_b"])
    assert count == 1
    assert text == "pip-audit knows 2 of 3 packages: 1 with a known weakness\na.b 1: CVE-2"
