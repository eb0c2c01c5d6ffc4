"""README's first screen and the gate say the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_gate_runs_the_command_lines_of_readme() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:24])
    blocks = re.findall(r"```sh\n(.+?)\n```", first_screen, re.DOTALL)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:run|test)_line='(.+)'$", gate, re.MULTILINE)
    assert blocks == lines
    assert all('eval "$' + name + '"' in gate for name in ("run_line", "test_line"))
