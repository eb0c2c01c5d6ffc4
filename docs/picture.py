"""Draw docs/report.svg and docs/gap.svg: both commands on the packaged RTP-LLM site, as a terminal shows them.

python docs/picture.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

SITE = ["--run", "rtp-k5", "--claim", "alpha=.72,rho=.1,k=5"]
PICTURES = {"report": (["report", "--by", "task_type", *SITE], 50), "gap": (["gap", "--by", "engine", *SITE], 36)}
WIDTH = 96


def main() -> None:
    """Run the demo and the commands in a folder of their own, and draw what they print."""
    with tempfile.TemporaryDirectory() as folder:
        lake = str(Path(folder) / "lake")
        subprocess.run([sys.executable, "-m", "tracelens", "demo", "--lake", lake], check=True, capture_output=True)
        for name, (command, lines) in PICTURES.items():
            Path(__file__).with_name(f"{name}.svg").write_text(_picture(name, command, lines, lake), encoding="utf-8")


def _picture(name: str, command: list[str], lines: int, lake: str) -> str:
    environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"}
    called = [sys.executable, "-m", "tracelens", *command, "--lake", lake]
    printed = subprocess.run(called, check=True, capture_output=True, env=environment).stdout.decode()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("$ tracelens " + " ".join(command), style="bold"))
        for line in printed.splitlines()[:lines]:
            console.print(Text.from_ansi(line))
        svg = console.export_svg(title=f"tracelens {name}")
    # The page must need nothing from a network: the fonts that rich links to are left out.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code", "ui-monospace").replace("FiraCode", "ui-monospace") + "\n"


if __name__ == "__main__":
    main()
