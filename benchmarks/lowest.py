"""`python -m benchmarks.lowest [FOLDER]`: the oldest versions that pyproject.toml allows, installed and tested.

Makes an environment in FOLDER (default: a temporary one), installs the lower bound of every dependency there, and runs
the tests that use most of each: whole ingests, the lake, reports in every format, the command line.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ("tests/test_api.py", "tests/lake", "tests/cli/test_ingest.py", "tests/cli/test_report.py",
         "tests/reporters/test_parquet.py", "tests/reporters/test_charts.py", "tests/ingest/test_fast.py",
         "tests/ingest/test_redact.py", "tests/samples")  # fmt: skip


def lowest() -> list[str]:
    """`name==version` of each dependency's lower bound.

    Raises:
        SystemExit: a dependency has none.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for text in project["dependencies"]:
        requirement, _, marker = text.partition(";")
        bound = re.fullmatch(r"\s*([\w.-]+)\s*>=\s*([\w.]+)\s*(?:,.*)?", requirement)
        if bound is None:
            raise SystemExit(f"pyproject.toml: {text!r} has no lower bound")
        found.append(f"{bound[1]}=={bound[2]}" + (f";{marker}" if marker else ""))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tracelens-lowest-"))
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--prefer-binary", *lowest()], check=True)
        subprocess.run([*pip, "pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.100"], check=True)
    print("\n".join(lowest()))
    command = [python, "-m", "pytest", "-q", "-n", "0", *(t for t in TESTS if (ROOT / t).exists())]
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode)


if __name__ == "__main__":
    main()
