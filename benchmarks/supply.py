"""`python -m benchmarks.supply`: the installed dependencies with their licences, and what is known against them.

Walks from pyproject.toml through everything that an installation without extras brings along. Leaves with 1 when one
has a licence that is not on the list; `pip-audit` runs where it is installed (it asks a server about known weaknesses).
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

#: Licences that may go along with Apache-2.0 code: permissive, and MPL-2.0, which binds its own files only.
ALLOWED = ("Apache", "MIT", "BSD", "PSF", "Python Software Foundation", "MPL-2.0", "Mozilla Public License 2.0",
           "ISC", "0BSD", "Unlicense", "CC0", "Zlib")  # fmt: skip


def installed() -> dict[str, metadata.Distribution]:
    """Everything that tracelens needs on this machine, by name."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, metadata.Distribution] = {}
    waiting: list[list[str]] = [project["dependencies"]]
    while waiting:
        for text in waiting.pop():
            needed = re.match(r"[\w.-]+", text)
            if needed is None or "extra ==" in text.replace('"', "").replace("'", ""):
                continue
            try:
                found_here = metadata.distribution(needed[0])
            except metadata.PackageNotFoundError:
                continue  # another machine's or Python's
            if needed[0] not in found:
                found[needed[0]] = found_here
                waiting.append(list(found_here.requires or ()))
    return found


def licence(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence: the expression, its classifiers, or the first line of its text."""
    told = distribution.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if c.startswith("License :: OSI")]
    text = (told.get("License") or "").strip().splitlines()
    return told.get("License-Expression") or ", ".join(classifiers) or (text[0] if text else "not told")


def main() -> None:
    bad = 0
    for name, distribution in sorted(installed().items(), key=lambda item: item[0].lower()):
        told = licence(distribution)
        fine = any(word in told for word in ALLOWED)
        bad += not fine
        print(f"{name:<28} {distribution.version:<14} {told}{'' if fine else '   <-- not on the list'}")
    audit = shutil.which("pip-audit")
    if audit is None:
        print("pip-audit is not installed: known weaknesses were not looked for")
    else:
        done = subprocess.run(
            [audit, "--progress-spinner", "off", "--format", "json"], capture_output=True, text=True, check=False
        )
        text, weak = audited(done.stdout, installed())
        print(text)
        bad += weak
    sys.exit(1 if bad else 0)


def audited(answer: str, wanted: Iterable[str]) -> tuple[str, int]:
    """What pip-audit's JSON says of the packages that are ours, and how many have a known weakness.

    It ends well, and says that nothing is known, also where it could ask nobody: then this says so.
    """
    try:
        told = {d["name"].lower(): d for d in json.loads(answer)["dependencies"]}
    except (ValueError, KeyError):
        return "pip-audit reached no database: known weaknesses were not looked for", 0
    ours = {_plain(name) for name in wanted}
    asked = [d for name, d in told.items() if _plain(name) in ours and "skip_reason" not in d]
    if not asked:
        return "pip-audit reached no database: known weaknesses were not looked for", 0
    weak = [f"{d['name']} {d['version']}: {', '.join(v['id'] for v in d['vulns'])}" for d in asked if d["vulns"]]
    head = f"pip-audit knows {len(asked)} of {len(ours)} packages: {len(weak)} with a known weakness"
    return "\n".join([head, *weak]), len(weak)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
