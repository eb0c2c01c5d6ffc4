"""Draw docs/report.svg: the head of `tracelens report` on the packaged RTP-LLM site, as a terminal shows it.

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

COMMAND = ["report", "--by", "task_type", "--run", "rtp-k5", "--claim", "alpha=.72,rho=.1,k=5"]
WIDTH, LINES = 96, 50


def main() -> None:
    """Run the demo and the report in a folder of their own, and draw what they print."""
    with tempfile.TemporaryDirectory() as folder:
        lake = str(Path(folder) / "lake")
        subprocess.run([sys.executable, "-m", "tracelens", "demo", "--lake", lake], check=True, capture_output=True)
        environment = {**os.environ, "COLUMNS": str(WIDTH), "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "tracelens", *COMMAND, "--lake", lake]
        printed = subprocess.run(command, check=True, capture_output=True, env=environment).stdout.decode()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        console = Console(record=True, width=WIDTH, file=nowhere)
        console.print(Text("$ tracelens " + " ".join(COMMAND), style="bold"))
        for line in printed.splitlines()[:LINES]:
            console.print(Text.from_ansi(line))
        svg = console.export_svg(title="tracelens report")
    # The page must need nothing from a network: the fonts that rich links to are left out.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code", "ui-monospace").replace("FiraCode", "ui-monospace")
    Path(__file__).with_name("report.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
