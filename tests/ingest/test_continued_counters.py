"""Scrapes of one process in several files: its history counts once, however they were cut, named and ingested."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ingest_logs import run, table

from tracelens.cli import run as cli
from tracelens.lake.connection import connect
from tracelens.lake.forget import forget
from tracelens.lake.store import Store

DATA = Path(__file__).parent.parent / "data"
K = 3
NOON = 1_778_068_800
# All of a window but where it stands.
COLUMNS = (
    "surface, replica, process, model, ts_end, num_speculative_tokens, steps, rounds, plain_steps, drafted, accepted,"
    " emitted, accepted_per_pos, draft_us, target_us, step_us, round_us, rounds_timed, preemptions, generated_tokens,"
    " prompt_tokens, running"
)
SPANS = ", ts_start, window_us"


class Server:
    """A server's counters, as its pages tell them; rounds, plain steps and requests come by chance."""

    def __init__(self, engine: str, seed: int, began: float | None = None) -> None:
        self.engine, self.began = engine, began
        self.chance = random.Random(seed)
        self.told = dict.fromkeys(("rounds", "plain", "requests", "prompt", "seconds", "preempted"), 0.0)
        self.places = [0] * K

    def works(self, speculates: bool) -> None:
        rounds = self.chance.randint(1, 60) if speculates else 0
        lengths = [self.chance.randint(0, K) for _ in range(rounds)]
        for i in range(K):
            self.places[i] += sum(n > i for n in lengths)
        self.told["rounds"] += rounds
        for name, most in (("plain", 9 if speculates else 90), ("requests", 4), ("prompt", 900), ("preempted", 2)):
            self.told[name] += self.chance.randint(0, most)
        self.told["seconds"] += rounds * 0.03125

    def page(self, at: float) -> str:
        """A scrape."""
        t, accepted = self.told, sum(self.places)
        out = t["rounds"] + t["plain"] + accepted
        generated = out + t["requests"]
        if self.engine == "llama":
            label, prefix, per = "", "llamacpp:", [f'{{position="{i}"}}' for i in range(K)]
            told = {"tokens_predicted_total": generated, "prompt_tokens_total": t["prompt"]}
        elif self.engine == "sglang":
            told = {"generation_tokens_total": generated, "num_requests_total": t["requests"],
                    "prompt_tokens_total": t["prompt"],
                    "spec_verify_calls_total": t["rounds"], "inter_token_latency_seconds_sum": t["seconds"],
                    "inter_token_latency_seconds_count": out}  # fmt: skip
            lines = [f'sglang:{name}{{model_name="m"}} {value}' for name, value in told.items()]
            return "\n".join([f"# unix={at:.3f}", 'sglang:spec_num_steps{model_name="m",tp_rank="0"} 3', *lines, ""])
        else:
            name = "vllm" if self.engine == "vllm" else "lmdeploy"
            label, prefix = '{engine="0",model_name="m"}', f"{name}:"
            per = [f'{{engine="0",model_name="m",position="{i}"}}' for i in range(K)]
            gaps = "inter_token_latency_seconds" if name == "vllm" else "iter_token_latency"
            told = {"generation_tokens_total": generated, "prompt_tokens_total": t["prompt"],
                    "time_to_first_token_seconds_count": t["requests"], f"{gaps}_count": t["rounds"] + t["plain"],
                    f"{gaps}_sum": t["seconds"], "num_preemptions_total": t["preempted"]}  # fmt: skip
        told |= {"spec_decode_num_drafts_total": t["rounds"], "spec_decode_num_draft_tokens_total": K * t["rounds"],
                 "spec_decode_num_accepted_tokens_total": accepted}  # fmt: skip
        lines = [f"{prefix}{name}{label} {value}" for name, value in told.items()]
        for place, value in zip(per, self.places, strict=True):
            lines.append(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total{place} {value}")
        if self.began is not None:
            lines.append(f"{prefix}generation_tokens_created{label} {self.began}")
        return "\n".join([f"# unix={at:.3f}", *lines, ""])


def series(
    engine: str, pages: int, *, seed: int = 1, restarts: Sequence[int] = (), began: bool = False,
    speculates: bool = True, boot: float = 3.25,
) -> list[str]:  # fmt: skip
    """Pages of a server; it starts anew, `boot` seconds, before some of them."""
    out = []
    for i in range(pages):
        if i == 0 or i in restarts:
            server = Server(engine, seed + i, NOON + 10 * i - boot if began else None)
        server.works(speculates)
        out.append(server.page(NOON + 10 * i))
    return out


def windows(lake: Path, columns: str = COLUMNS + SPANS) -> list[tuple[Any, ...]]:
    con = connect(lake, grouped=False)
    try:
        return sorted(con.execute(f"select {columns} from windows").fetchall(), key=repr)
    finally:
        con.close()


def put(folder: Path, name: str, pages: Sequence[str]) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(pages))
    return folder / name


def whole(folder: Path, pages: Sequence[str], columns: str = COLUMNS + SPANS) -> list[tuple[Any, ...]]:
    """What one file with all pages gives."""
    run(folder / "whole", put(folder, "whole.prom", pages))
    return windows(folder / "whole", columns)


ENGINES = ("vllm", "llama", "lmdeploy", "sglang")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.long
def test_two_files_without_a_common_scrape(tmp_path: Path, engine: str) -> None:
    pages = series(engine, 8)
    expected = whole(tmp_path, pages)
    assert len(expected) == 8
    parts = {"a.prom": pages[:5], "b.prom": pages[5:]}
    for i, names in enumerate((["a.prom", "b.prom"], ["b.prom", "a.prom"])):
        for name in names:
            run(tmp_path / f"lake-{i}", put(tmp_path / "logs", name, parts[name]))
        assert windows(tmp_path / f"lake-{i}") == expected
    run(tmp_path / "at-once", tmp_path / "logs")
    assert windows(tmp_path / "at-once") == expected


@pytest.mark.parametrize("began", [False, True])
def test_a_start_between_two_files_shares_nothing(tmp_path: Path, began: bool) -> None:
    pages = series("vllm", 8, restarts=[4], began=began)
    expected = whole(tmp_path, pages)
    for i, part in enumerate((pages[4:], pages[:4])):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", part))
    assert windows(tmp_path / "lake") == expected
    assert sum(row[9] for row in expected) > max(row[9] for row in expected) * 2


def test_a_new_process_that_has_counted_more(tmp_path: Path) -> None:
    """Without the moment of its start it would pass for the old one."""
    one, two = series("vllm", 3, began=True), series("vllm", 12, seed=9, began=True)[7:]
    two = [page.replace(f"{NOON - 3.25}", f"{NOON + 60.5}") for page in two]
    for i, part in enumerate((one, two)):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", part))
    found = windows(tmp_path / "lake", "drafted, ts_start, source_line")
    assert sum(row[1] is None for row in found) == 2


def test_processes_of_other_folders_are_one_where_they_began_at_once(tmp_path: Path) -> None:
    pages = series("vllm", 8, began=True)
    expected = whole(tmp_path, pages)
    for i, part in enumerate((pages[:2], pages[5:], pages[2:5])):
        run(tmp_path / "lake", put(tmp_path, f"day-{i}/metrics.prom", part))
    assert windows(tmp_path / "lake") == expected


def test_servers_of_other_folders_that_do_not_say_when_they_began_stay_two(tmp_path: Path) -> None:
    pages = series("llama", 8)
    for i, part in enumerate((pages[:4], pages[4:])):
        run(tmp_path / "lake", put(tmp_path, f"pod-{i}/metrics.prom", part))
    assert sum(row[1] is None for row in windows(tmp_path / "lake", "drafted, ts_start")) == 2
    named = tmp_path / "named"
    for i, part in enumerate((pages[:4], pages[4:])):
        run(named, put(tmp_path, f"pod-{i}/metrics.prom", part), run="server")
    assert windows(named) == whole(tmp_path, pages)


@pytest.mark.parametrize("speculates", [True, False])
def test_two_servers_in_one_folder_contradict_each_other(tmp_path: Path, speculates: bool) -> None:
    """Their counters fall where neither of them has begun anew."""
    one, two = series("llama", 6, speculates=speculates), series("llama", 6, seed=5, speculates=speculates)
    alone = [whole(tmp_path / str(i), pages) for i, pages in enumerate((one, two))]
    for i, pages in enumerate((one, two)):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", pages))
    assert windows(tmp_path / "lake") == sorted([*alone[0], *alone[1]], key=repr)


def undated(page: str) -> str:
    return page.partition("\n")[2]


def drafted(lake: Path) -> int:
    return int(sum(row[0] or 0 for row in windows(lake, "drafted")))


def spec_rounds(page: str) -> int:
    return int(float(re.findall(r"num_drafts_total\S* (\S+)", page)[0]))


@pytest.mark.long
@pytest.mark.parametrize("began", [False, True])
@pytest.mark.parametrize("engine", ["llama", "vllm"])
def test_pages_without_a_time_go_by_what_they_count(tmp_path: Path, engine: str, began: bool) -> None:
    pages = [undated(page) for page in series(engine, 3, began=began)]
    for i in (2, 0, 1):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", [pages[i]]))
    assert drafted(tmp_path / "lake") == K * spec_rounds(pages[2])


def test_a_dated_series_between_two_pages_without_a_time(tmp_path: Path) -> None:
    """One page before a benchmark, one behind it, and a scraper beside it."""
    pages = series("llama", 8)
    parts = ([undated(pages[0])], pages[1:7], [undated(pages[7])])
    for i in (1, 2, 0):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", parts[i]))
    assert drafted(tmp_path / "lake") == K * spec_rounds(pages[7])


def test_where_counters_fell_pages_without_a_time_have_no_place(tmp_path: Path) -> None:
    """Before the start or behind it? Each file's first value counts, as it does alone."""
    pages = series("llama", 8, restarts=[4])
    run(tmp_path / "lake", put(tmp_path, "series.prom", pages))
    alone = drafted(tmp_path / "lake")
    run(tmp_path / "lake", put(tmp_path, "page.prom", [undated(pages[2])]))
    assert drafted(tmp_path / "lake") == alone + K * spec_rounds(pages[2])


def test_two_servers_without_times_contradict_each_other(tmp_path: Path) -> None:
    one, two = undated(series("llama", 6)[-1]), undated(series("llama", 7, seed=5, speculates=False)[-1])
    for i, page in enumerate((one, two)):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", [page]))
    assert drafted(tmp_path / "lake") == K * spec_rounds(one)
    generated = windows(tmp_path / "lake", "generated_tokens")
    assert {row[0] for row in generated} == {
        int(float(re.findall(r"tokens_predicted_total (\S+)", page)[0])) for page in (one, two)
    }


@pytest.mark.parametrize("name", ["metrics-B-trunc2-k3.prom.gz", "metrics-A-ngram-k4.prom.gz"])
def test_pages_of_a_real_server(tmp_path: Path, name: str) -> None:
    text = gzip.decompress((DATA / "vllm" / name).read_bytes()).decode()
    pages = [f"# TRACELENS-SCRAPE{page}" for page in text.split("# TRACELENS-SCRAPE")[1:]]
    expected = whole(tmp_path, pages)
    for i in (1, 0, 2):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", pages[i::3]))
    assert windows(tmp_path / "lake") == expected


def test_a_real_series_of_llama_server(tmp_path: Path) -> None:
    text = (DATA / "llama-cpp" / "metrics_series.txt").read_text()
    pages = [f"# t={page}" for page in text.split("# t=")[1:]]
    expected = whole(tmp_path, pages)
    for i, part in enumerate((pages[3:], pages[:3])):
        run(tmp_path / "lake", put(tmp_path, f"{i}.prom", part))
    assert windows(tmp_path / "lake") == expected


# ---------------------------------------------------------------- what comes and goes


def test_grown_replaced_and_forgotten_sources(tmp_path: Path) -> None:
    lake, pages = tmp_path / "lake", series("vllm", 12)
    expected = whole(tmp_path, pages)
    first, last = put(tmp_path, "a.prom", pages[:4]), put(tmp_path, "c.prom", pages[9:])
    run(lake, first, last)
    assert sum(row[0] for row in windows(lake, "drafted")) == sum(row[9] for row in expected)
    run(lake, put(tmp_path, "a.prom", pages[:7]))
    middle = put(tmp_path, "b.prom", pages[7:9])
    run(lake, middle)
    assert windows(lake) == expected
    run(lake, first, middle, last, replace=True)
    assert windows(lake) == expected
    ids = {name: source for source, name in table(lake, "sources", "source_id", "name")}
    forget(Store(lake), [ids["b.prom"]])
    assert sum(row[0] for row in windows(lake, "drafted")) == sum(row[9] for row in expected)
    forget(Store(lake), [ids["a.prom"]])
    alone = tmp_path / "alone"
    run(alone, last)
    assert windows(lake) == windows(alone)


def test_the_report_and_the_ledger_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake, pages = tmp_path / "lake", series("llama", 9)
    for name, part in (("a.prom", pages[:4]), ("b.prom", pages[4:])):
        run(lake, put(tmp_path, name, part))
    assert cli(["report", "--lake", str(lake), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    told = {w["code"]: w for w in answer["warnings"]}
    assert "1 window of b.prom goes on from counters that a.prom holds, too" in told["continued"]["text"]
    assert "--run" in told["continued"]["text"]  # llama.cpp does not say when it began
    assert told["continued"]["evidence"] == {"windows": 1, "pairs": 1, "by_name": 1}
    assert "ingested_twice" not in told
    con = connect(lake, keep=True)
    drafted = con.execute("select sum(drafted) from facts").fetchall()[0][0]
    con.close()
    assert drafted == K * int(float(re.findall(r"num_drafts_total (\S+)", pages[-1])[0]))
    names = dict(table(lake, "sources", "source_id", "name"))
    con = connect(lake, grouped=False)
    asked = con.execute((Path(__file__).parents[2] / "queries" / "sources.sql").read_text())
    found = [dict(zip([c for c, *_ in asked.description], row, strict=True)) for row in asked.fetchall()]
    con.close()
    goes_on = {row["name"]: {names[k]: n for k, n in (row["continues"] or {}).items()} for row in found}
    assert goes_on == {"a.prom": {}, "b.prom": {"a.prom": 1}}


# ---------------------------------------------------------------- any cut, any order


@st.composite
def cuts(draw: st.DrawFn, number: int) -> tuple[list[str], list[list[str]]]:
    """A series of scrapes, and the same in files of any of its scrapes."""
    engine, count = ENGINES[number % len(ENGINES)], draw(st.integers(2, 9))
    began = engine == "vllm" and draw(st.booleans())
    # Restarts that counters do not show are known by the moment of the start alone.
    restarts = draw(st.lists(st.integers(1, count - 1), max_size=2, unique=True)) if began else []
    # No two servers began at the same millisecond: by it, processes of other folders are known again.
    pages = series(engine, count, seed=100 * number, restarts=restarts, began=began, boot=3.25 + number / 64)
    files: list[list[str]] = [[] for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        edges = sorted(draw(st.lists(st.integers(0, count), min_size=len(files) - 1, max_size=len(files) - 1)))
        files = [pages[a:b] for a, b in zip([0, *edges], [*edges, count], strict=True)]
    else:  # dealt out, some pages to two files
        for page in pages:
            for i in draw(st.sets(st.integers(0, len(files) - 1), min_size=1, max_size=2)):
                files[i].append(page)
    return pages, draw(st.permutations([f for f in files if f]))


@settings(max_examples=12)
@given(data=st.data())
def test_any_cut_gives_the_figures_of_the_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """One server of every engine in one lake, each in a folder of its own; two ingests."""
    folder = tmp_path_factory.mktemp("cuts")
    paths: list[Path] = []
    ingests: list[list[Path]] = [[], []]
    for number in range(len(ENGINES)):
        pages, parts = data.draw(cuts(number))
        paths.append(put(folder, f"whole/{number}/a.prom", pages))
        for i, file in enumerate(parts):
            ingests[data.draw(st.integers(0, 1))].append(put(folder, f"logs/{number}/{i}.prom", file))
    run(folder / "whole.lake", *paths)
    for files in ingests:
        if files:
            run(folder / "lake", *files)
    assert windows(folder / "lake") == windows(folder / "whole.lake")
