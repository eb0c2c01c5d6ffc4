"""Bad input on purpose: one fault of each kind between good records, for `inspect` and `ingest`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from . import canonical_writer, rtp_writer
from .files import dumps, utc, write_json, write_lines, write_text
from .parameters import OTHER_SITE, RTP_SITE, VLLM_SITE
from .simulator import Simulation, simulate
from .vllm_text import API
from .vllm_writer import response, spec_line


def write(folder: Path, seed: int) -> None:
    """Write the files and `truth.json`, which says what is good and what is not in each."""
    truth = {
        "rounds.jsonl": _rounds(folder / "rounds.jsonl", seed),
        "responses.jsonl": _responses(folder / "responses.jsonl", seed),
        "server.log": _server_log(folder / "server.log"),
        "engine.log": _engine_log(folder / "engine.log", seed),
    }
    write_json(folder / "truth.json", {"files": truth})


def _small(seed: int, site: Any, requests: int) -> Simulation:
    return simulate(seed, 5, requests, site=site, runaway=False, length_scale=0.2)


def _rounds(path: Path, seed: int) -> dict[str, Any]:
    good = canonical_writer.rows(_small(seed, OTHER_SITE, 4), "hostile", utc(2026, 11, 22, 9))[:8]
    lines = [dumps(row) for row in good]
    lines.insert(2, dumps(good[1])[:-40] + ',"x"')
    lines.insert(4, dumps(good[2] | {"accepted": 6, "emitted": 7, "round_index": 900}))
    lines.insert(6, dumps(good[3] | {"emitted": good[3]["accepted"] + 2, "round_index": 901}))
    lines.insert(8, "")
    write_text(path, "\n".join(lines) + "\n" + dumps(good[-1] | {"round_index": 902})[:120])
    return {
        "good_rounds": len(good),
        "bad_lines": {
            "3": "broken JSON",
            "5": "identity: accepted 6 > drafted 5",
            "7": "identity: emitted > accepted + 1",
            str(len(lines) + 1): "last line cut, no line end",
        },
        "empty_lines": [9],
    }


def _responses(path: Path, seed: int) -> dict[str, Any]:
    sim = _small(seed, VLLM_SITE, 6)
    rows = [response(sim, i, utc(2026, 11, 22, 10)) for i in range(4)]
    rows[1]["metrics"]["speculative_decoding"]["acceptance_histogram"][0] += 3
    rows[2]["metrics"]["speculative_decoding"]["per_step_accepted"][0] = 6
    write_lines(path, map(dumps, rows))
    return {
        "good_requests": 2,
        "bad_lines": {
            "2": "identity: the histogram's sum is not num_spec_steps",
            "3": "identity: per_step_accepted 6 > per_step_drafted 5",
        },
    }


def _server_log(path: Path) -> dict[str, Any]:
    start = utc(2026, 11, 22, 10)

    def line(second: int, counts: list[int], drafts: int) -> str:
        message = spec_line(drafts, drafts * 5, counts, 10.0)
        return f"{API} INFO {start + timedelta(seconds=second):%m-%d %H:%M:%S} [metrics.py:120] {message}"

    first, second = line(10, [170, 140, 118, 97, 80], 200), line(20, [160, 131, 109, 88, 70], 190)
    third, last = line(30, [171, 139, 117, 98, 81], 201), line(40, [150, 120, 99, 80, 61], 180)
    cut_tail = third[: third.index("Avg Draft") + 6]
    cut_counts = last[: last.index("Drafted: ") + 10]
    write_text(path, f"{first}\n" + "\0" * 512 + f"{second}\n{cut_tail}\n{cut_counts}")
    return {
        "good_windows": 3,
        "lines": {
            "2": "512 NUL bytes before the line (a hole left by log rotation): the line is good",
            "3": "tail cut behind the counts and the positions: good",
        },
        "bad_lines": {"4": "cut inside the count of drafted tokens, no line end"},
    }


def _engine_log(path: Path, seed: int) -> dict[str, Any]:
    lines, _ = rtp_writer.engine_log(_small(seed, RTP_SITE, 2), utc(2026, 1, 22, 10))
    ends = [i for i, text in enumerate(lines) if "total_step_time" in text]
    lines = lines[: ends[3] + 1]
    at = next(i for i in range(ends[1] + 1, len(lines)) if "propose_token_num = [5]" in lines[i])
    lines[at] = lines[at].rsplit("accept_token_num = [", 1)[0] + "accept_token_num = [7]"
    totals = next(i for i in range(at, len(lines)) if "propose_token_num: " in lines[i])
    write_text(path, "\n".join(lines)[:-9])
    return {
        "steps": 4,
        "bad_lines": {
            str(at + 1): "identity: accept_token_num 7 > propose_token_num 5 + 1",
            str(totals + 1): "totals line: no longer the sum of the step's good stream lines",
            str(len(lines)): "times line cut inside its last field, no line end: the step's streams stay, untimed",
        },
    }
