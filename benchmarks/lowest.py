"""`python -m benchmarks.lowest [FOLDER]`: the oldest versions that pyproject.toml allows, installed and tested.

Makes an environment in FOLDER (default: a temporary one), installs the lower bound of every dependency there, and runs
the tests. `--newest` installs the newest versions instead. `--python PATH` takes another Python than this one, as often
as given; `--every` takes each that pyproject.toml names and this machine has.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# Extras whose lower bounds are tested along, and a local S3 server that s3fs of then can share its boto3 with.
EXTRAS = ("s3",)
RUNNERS = ("pytest>=8.2", "pytest-xdist>=3.6", "hypothesis>=6.100", "moto[server]>=5.1", "aiobotocore[boto3]<3")


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def lowest() -> list[str]:
    """`name==version` of each dependency's lower bound, those of the tested extras too.

    Raises:
        SystemExit: a dependency has none.
    """
    found = []
    project = _project()
    for text in (*project["dependencies"], *(t for e in EXTRAS for t in project["optional-dependencies"][e])):
        requirement, _, marker = text.partition(";")
        bound = re.fullmatch(r"\s*([\w.-]+)\s*>=\s*([\w.]+)\s*(?:,.*)?", requirement)
        if bound is None:
            raise SystemExit(f"pyproject.toml: {text!r} has no lower bound")
        found.append(f"{bound[1]}=={bound[2]}" + (f";{marker}" if marker else ""))
    return found


def supported() -> list[str]:
    """The versions of Python that the metadata name: `3.11` and so on."""
    told = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in _project()["classifiers"])
    return [one[1] for one in told if one]


def version(python: str | Path) -> str | None:
    """What version a Python is; None where it does not start, as a version manager's stand-ins do."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def found(minor: str) -> Path | None:
    """A Python of this version: this one, the search path's, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [sys.executable, shutil.which(f"python{minor}"), *sorted(kept.glob(f"{minor}.*/bin/python"), reverse=True)]
    return next((Path(one) for one in named if one and version(one) == minor), None)


def tried(python: Path, folder: Path, *, newest: bool) -> int:
    """The tests' exit code in an environment of this Python in `folder`, which is made where it is not there yet."""
    own = folder / "bin" / "python"
    if not own.exists():
        subprocess.run([python, "-m", "venv", folder], check=True)
        pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        if newest:
            subprocess.run([*pip, "-e", f"{ROOT}[dev]"], check=True)
        else:  # wheels alone: a lower bound that this Python would have to compile is none
            subprocess.run([*pip, "--only-binary", ":all:", *lowest(), *RUNNERS], check=True)
            subprocess.run([*pip, "--no-deps", "-e", ROOT], check=True)  # its commands and entry points
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([own, "-m", "pytest", "-q"], cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowest", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--python", type=Path, action="append", help="this Python, not the one that runs this")
    parser.add_argument("--every", action="store_true", help="each supported Python that this machine has")
    parser.add_argument("--newest", action="store_true", help="the newest versions instead")
    options = parser.parse_args()
    pythons: list[tuple[str, Path | None]] = [
        (version(one) or parser.error(f"{one} does not start"), one) for one in options.python or ()
    ]
    if options.every:
        pythons += [(minor, found(minor)) for minor in supported()]
    if not pythons:
        pythons = [("{}.{}".format(*sys.version_info), Path(sys.executable))]
    folder = options.folder or Path(tempfile.mkdtemp(prefix="tracelens-lowest-"))
    kind = "newest" if options.newest else "lowest"
    if not options.newest:
        print("\n".join(lowest()), flush=True)
    told = []
    for minor, python in pythons:
        code = tried(python, folder / f"{minor}-{kind}", newest=options.newest) if python else None
        how = "not on this machine" if code is None else f"failed ({code})" if code else "passed"
        told.append((f"Python {minor}, {kind} versions: {how}", code))
    print("\n".join(line for line, _ in told))
    sys.exit(any(code for _, code in told))


if __name__ == "__main__":
    main()
