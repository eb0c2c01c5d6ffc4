"""Copy real vLLM runs into `vllm-real/`, without the texts: `python samples/import_real.py RUNS OUT`.

Only for whoever has the recordings; kept so that a reader sees what was done to them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

from sample_generator.files import write_json, write_lines

RUNS = ("B-trunc2-k1", "B-trunc2-k3-fix", "B-trunc2-k7", "C-baseline")
DROPPED = ("text",)
ORACLE = {
    "rounds": "spec_decode_num_drafts_total",
    "drafted": "spec_decode_num_draft_tokens_total",
    "accepted": "spec_decode_num_accepted_tokens_total",
    "output_tokens": "generation_tokens_total",
    "steps": "iteration_tokens_total_count",
}
# From the recordings' MANIFEST: sums over the whole log (warm-up and bench included).
LOG_SUMS = {
    "B-trunc2-k1": {"interval_lines": 7, "sum_accepted": 960, "sum_drafted": 2373, "iteration_lines": 694},
    "B-trunc2-k3-fix": {"interval_lines": 3, "sum_accepted": 595, "sum_drafted": 2757, "iteration_lines": 318},
    "B-trunc2-k7": {"interval_lines": 12, "sum_accepted": 1382, "sum_drafted": 13307, "iteration_lines": 587},
    "C-baseline": {"interval_lines": 0, "sum_accepted": 0, "sum_drafted": 0, "iteration_lines": 777},
}


def import_run(source: Path, target: Path) -> dict[str, Any]:
    """Copy one run; return its truth."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "server.log.gz", target / "server.log.gz")
    with gzip.open(source / "responses.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    kept = [json.dumps({k: v for k, v in row.items() if k not in DROPPED}) for row in rows]
    write_lines(target / "responses.jsonl.gz", kept)
    oracle = json.loads((source / "oracle.json").read_text())
    delta = oracle["metrics_delta"]
    return {
        "from_metrics": {name: int(delta.get(key, 0)) for name, key in ORACLE.items()}
        | {"accepted_per_pos": [int(v) for v in delta.get("per_pos", [])]},
        "from_log": LOG_SUMS[source.name],
        "responses": {k: v for k, v in oracle["responses"].items() if k != "n_with_per_step"},
        "by_task_and_temperature": oracle["by_task_temp"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    truth = {run: import_run(options.runs / run, options.out / run) for run in RUNS}
    write_json(options.out / "truth.json", {"synthetic": False, "runs": truth})


if __name__ == "__main__":
    main()
