"""A real vLLM on a CPU, recorded: are all five witnesses of one count, and does the report say what it should?

    python -m tests.live.vllm_site --vllm VENV --work FOLDER

VENV is an environment that has vLLM and tracelens (docs/record.md, "The real run"). For each setting a server is
started with TRACELENS_RECORD, asked by several clients at two temperatures, stopped, and its records ingested. Then:
rounds = stat logger (step by step) = /metrics = responses (request by request, round by round); the time of a request's
rounds is the response's decode time within `TPOT_TOLERANCE`; rho, verify pass and overhead are in the report. Exit code
1 where any of this fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Of one request's decode time, engine core against front end.
TPOT_TOLERANCE = 0.01
TEMPERATURES = (0.0, 0.7)
_COUNTER = re.compile(r"^vllm:spec_decode_num_(drafts|draft_tokens|accepted_tokens)_total\{[^}]*\} ([\d.e+]+)$", re.M)


@dataclass(frozen=True)
class Site:
    """One server: what it speculates with, and where its things lie."""

    method: str
    k: int
    vllm: Path
    models: Path
    folder: Path
    port: int
    more: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        if not self.k:
            return self._plain()
        speculative: dict[str, Any] = {"method": self.method, "num_speculative_tokens": self.k}
        if self.method == "draft_model":
            speculative["model"] = str(self.models / "draft")
        else:
            speculative |= {"prompt_lookup_max": 4, "prompt_lookup_min": 1}
        return [
            *self._plain(), "--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed",
            "--speculative-config", json.dumps(speculative),
        ]  # fmt: skip

    def _plain(self) -> list[str]:
        return [
            str(self.vllm / "bin" / "vllm"), "serve", str(self.models / "target"), "--served-model-name", "toy",
            "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--dtype", "bfloat16",
            "--max-model-len", "1024", "--max-num-seqs", "16", "--seed", "0", "--enable-request-id-headers",
            *self.more,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        return {
            **os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1", "OMP_NUM_THREADS": "1",
            "TRACELENS_RECORD": str(self.folder / "records"), "TRACELENS_RECORD_TASK": "^cmpl-([a-z]+)-",
        }  # fmt: skip


@contextmanager
def serving(site: Site) -> Iterator[None]:
    with (site.folder / "server.log").open("w") as log:
        server = subprocess.Popen(site.command(), env=site.environment(), stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(site, server)
            yield
        finally:
            server.terminate()
            server.wait(60)


def _wait(site: Site, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"the server ended: {site.folder / 'server.log'}")
        try:
            _get(f"{site.url}/health")
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
        else:
            return
    raise SystemExit("the server did not come up in ten minutes")


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def drive(site: Site, requests: int, clients: int) -> list[dict[str, Any]]:
    """Ask; responses with the id that was sent."""
    prompts = json.loads((site.models / "prompts.json").read_text())
    tasks = sorted(prompts)
    jobs = [(i, tasks[i % len(tasks)], TEMPERATURES[i // len(tasks) % 2]) for i in range(requests)]
    found: list[dict[str, Any]] = []

    def client() -> None:
        while True:
            try:
                i, task, temperature = jobs.pop()
            except IndexError:
                return
            body = {
                "model": "toy", "prompt": prompts[task][i % len(prompts[task])], "max_tokens": 40, "ignore_eos": True,
                "temperature": temperature,
            }  # fmt: skip
            name = f"{task}-{i:04d}"
            headers = {"Content-Type": "application/json", "X-Request-Id": name}
            request = urllib.request.Request(f"{site.url}/v1/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=600) as answer:
                found.append({"name": name, "temperature": temperature, **json.loads(answer.read())})

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def counters(site: Site) -> dict[str, int]:
    """Drafts, drafted and accepted of /metrics."""
    return {name: int(float(value)) for name, value in _COUNTER.findall(_get(f"{site.url}/metrics"))}


def check(site: Site, responses: list[dict[str, Any]], told: dict[str, int]) -> list[str]:
    """What does not agree."""
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest
    from tracelens.lake.connection import connect

    lake = site.folder / "lake"
    shutil.rmtree(lake, ignore_errors=True)
    wrong: list[str] = []
    if ingest([str(site.folder / "records")], lake, IngestOptions()).rejects:
        wrong.append("there are rejects")
    with connect(lake) as db:
        sums = {
            "rounds": "select count(*) filter (drafted > 0), sum(drafted), sum(accepted) from rounds",
            "stat logger": "select sum(rounds), sum(drafted), sum(accepted) from windows",
            "requests": "select sum(rounds), sum(drafted), sum(accepted) from requests",
        }
        counted = {name: db.execute(sql).fetchone() for name, sql in sums.items()}
        steps = db.execute(
            "select step_id, sum(drafted), sum(accepted) from rounds where drafted > 0 group by 1 order by min(ts)"
        ).fetchall()
        # By time: a server that ran for long, or wrote much, has several files.
        of_windows = "select drafted, accepted from windows where rounds > 0 order by ts_end, source_line"
        windows = db.execute(of_windows).fetchall()
        rows = db.execute(
            "select request_key(request_id), drafted, accepted, step_us, temperature from rounds order by round_index"
        ).fetchall()
    counted["/metrics"] = (told["drafts"], told["draft_tokens"], told["accepted_tokens"])
    counted["responses"] = _sums(responses)
    if len(set(counted.values())) != 1:
        wrong.append("sums differ")
    if [step[1:] for step in steps] != windows:
        wrong.append("the stat logger's steps are not those of the rounds")
    by_request: dict[str, list[Any]] = {}
    for name, *row in rows:
        by_request.setdefault(name, []).append(row)
    worst = max(_request(response, by_request[response["name"]], wrong) for response in responses)
    print(f"  {'':<12}{'drafts':>8}{'drafted':>9}{'accepted':>9}")
    for name, (drafts, drafted, accepted) in counted.items():
        print(f"  {name:<12}{drafts:>8}{drafted:>9}{accepted:>9}")
    print(f"  {len(steps)} steps agree one by one: {[s[1:] for s in steps] == windows}; decode time: worst {worst:.4%}")
    if worst > TPOT_TOLERANCE:
        wrong.append(f"a request's decode time differs by {worst:.2%}")
    return wrong


def _sums(responses: list[dict[str, Any]]) -> tuple[int, int, int]:
    spec = [r["metrics"]["speculative_decoding"] or {} for r in responses]
    keys = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    drafts, drafted, accepted = (sum(s.get(key) or 0 for s in spec) for key in keys)
    return drafts, drafted, accepted


def _request(response: dict[str, Any], rows: list[Any], wrong: list[str]) -> float:
    """Relative difference of the decode times of one request; its rounds must be the response's own."""
    spec = response["metrics"]["speculative_decoding"] or {}
    mine = [(drafted, accepted) for drafted, accepted, *_ in rows if drafted]
    theirs = list(zip(spec.get("per_step_drafted") or [], spec.get("per_step_accepted") or [], strict=True))
    if mine != theirs:
        wrong.append(f"{response['name']}: rounds differ from the response's")
    if {row[3] for row in rows} != {response["temperature"]}:
        wrong.append(f"{response['name']}: temperature differs")
    return abs(sum(row[2] for row in rows) / 1000 / response["metrics"]["generation_time_ms"] - 1)


def _report(site: Site, baseline: Path) -> list[str]:
    """Which of the model's figures the report over the site and its baseline does not have."""
    import tracelens
    from tracelens.ingest.options import IngestOptions
    from tracelens.ingest.run import ingest

    lake = site.folder / "lake"
    ingest([str(baseline / "records")], lake, IngestOptions(run="plain", role="baseline"))
    if not site.k:
        return []
    figures = tracelens.open(lake).report(by=["task_type", "temperature_bucket"], baseline="plain").total.figures
    names = (
        "draft_accept_ratio",
        "rho",
        "verify_inflation",
        "overhead",
        "round_cost",
        "draft_ms",
        "target_ms",
        "step_ms",
    )
    shown = {name: figures.get(name) for name in names}
    print("  " + ", ".join(f"{n} {v:.3f}" if isinstance(v, float) else f"{n} {v}" for n, v in shown.items()))
    return [f"the report has no {name}" for name, value in shown.items() if value is None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.live.vllm_site", description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="environment with vLLM and tracelens")
    parser.add_argument("--work", type=Path, required=True, help="folder for models, logs, records and lakes")
    sites = "none:0,draft_model:1,draft_model:3,draft_model:5,ngram:1,ngram:3,ngram:5"
    parser.add_argument("--sites", default=sites, help="METHOD:K of each server; none:0, the baseline, comes first")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--more", default="", help="further arguments of `vllm serve`, in one text")
    parser.add_argument("--port", type=int, default=8790)
    options = parser.parse_args()
    vllm, work = options.vllm.absolute(), options.work.absolute()
    models = work / "models"
    if not (models / "prompts.json").exists():
        models.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("toy_models.py")
        subprocess.run([str(vllm / "bin" / "python"), str(script), str(models)], check=True)
    failures = 0
    for i, name in enumerate(options.sites.split(",")):
        method, k = name.split(":")
        folder = work / f"{method}-k{k}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        site = Site(method, int(k), vllm, models, folder, options.port + i, tuple(options.more.split()))
        with serving(site):
            before = counters(site)
            responses = drive(site, options.requests, options.clients)
            time.sleep(1)
            told = {name: value - before.get(name, 0) for name, value in counters(site).items()}
        (folder / "responses.json").write_text(json.dumps([{**r, "choices": None} for r in responses]))
        print(f"{method} K={k}: {len(responses)} requests", flush=True)
        wrong = check(site, responses, told) if site.k else []
        if (work / "none-k0").exists():
            wrong.extend(_report(site, work / "none-k0"))
        failures += len(wrong)
        print("\n".join(f"  WRONG: {w}" for w in wrong) or "  all agree", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
