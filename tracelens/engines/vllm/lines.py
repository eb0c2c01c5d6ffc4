"""vLLM's log lines, 0.4.2 to 0.33: declarations of what they print, and their vectorised extraction.

Nothing here depends on the source file or line number that a line names: both move with every release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import polars as pl

from tracelens.engines.base import Parsed, Reject
from tracelens.engines.vllm import shapes

# Name, what the message starts with (a regular expression), and what takes the rows of `split` that do.
LineSurface = tuple[str, str, Callable[[str, pl.DataFrame, Parsed], None]]

NEEDLES: tuple[bytes, ...] = (
    b"SpecDecoding metrics: ",
    b"Speculative metrics: ",
    b"SpecDecodeWorker stage times: ",
    b"Avg prompt throughput: ",
    b"Iteration(",
    b"Received request ",
    b"Initializing a",
    b"non-default args: ",
    b"vLLM API server version ",
    b"Asynchronous scheduling is ",
)

# `(APIServer pid=1) INFO 11-29 11:41:57 [loggers.py:335] ` and every older form: without the process (before 0.9),
# without brackets (before 0.8), `(VllmWorker rank=0 pid=9)` (V1 up to 0.10). No year, no zone.
_PREFIX = (
    r"(?:\((?P<proc>[^()]*?)(?: rank=\d+)? pid=(?P<pid>\d+)\)\s+)?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<inner>\d\d-\d\d \d\d:\d\d:\d\d) \[?[^\]\s]+:\d+\] "
)
# Nearly all lines are exactly a prefix and a message. Cut at the first `] ` the prefix is short and matched at both
# ends, which is three times faster than to look for it in the whole line.
_WHOLE_PREFIX = "^" + _PREFIX.removesuffix(r"\] ") + "$"
_BARE_PREFIX = _PREFIX.replace("?P<proc>", "?:").replace("?P<pid>", "?:").replace("?P<inner>", "?:")
# Before a prefix may stand an envelope we don't know, a progress bar. Never a quote or a brace: those open text that a
# user wrote, and a prompt may hold a whole metrics line.
_SPLIT = rf"(?s)^(?P<head>.*?){_PREFIX}(?P<message>.*)$"
# What no record of its own may stand behind: a quote or a brace, and the messages that carry a user's text.
_FOREIGN = r"""['"`{]|Received request |Generated response |Request \S+ details|response_body="""

_NUM = r"(?:[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|nan)"
_V1_KEYS = {
    "mal": rf"Mean acceptance length: ({_NUM})",
    "drafted_tput": rf"Drafted throughput: ({_NUM}) tokens/s",
    "accepted": r"Accepted: (\d+) tokens",
    "drafted": r"Drafted: (\d+) tokens",
    "per_pos": rf"Per-position acceptance rate: ((?:{_NUM}(?:, )?)+)",
}
_COUNTED = ("accepted", "drafted")
_COUNT_LIMIT = 2**53  # a double still holds every whole number
_V0_KEYS = {
    # The mark behind each number tells that it is whole, and not the beginning of one that was cut.
    "k": r"Number of speculative tokens: (\d+),",
    "matched": r"Number of accepted tokens: (\d+),",
    # 0.4.2 printed the word twice: "Number of draft tokens tokens".
    "drafted": r"Number of draft tokens(?: tokens)?: (\d+),",
    "emitted": r"Number of emitted tokens(?: tokens)?: (\d+)\.",
}
# Two decimals each: fewer are what a cut left.
_STAGE_KEYS = {
    "draft_ms_per_token": r"average_time_per_proposal_tok_ms=(\d+\.\d\d|nan)",
    "target_ms": r"scoring_time_ms=(\d+\.\d\d|nan)",
    "sample_ms": r"verification_time_ms=(\d+\.\d\d|nan)",
}
# One vocabulary of `key: value` parts since 0.4.2; parts come and go with the version, so each is looked up alone.
_ENGINE_KEYS = {
    "engine": r"^Engine (\d+): ",
    "prompt_tput": rf"Avg prompt throughput: ({_NUM}) tokens/s",
    "generation_tput": rf"Avg generation throughput: ({_NUM}) tokens/s",
    "running": r"Running: (\d+) reqs",
    "waiting": r"(?:Waiting|Pending): (\d+) reqs",
    "kv": rf" \w+ KV cache usage: ({_NUM})%",
}
_ENGINE_INTS = ("engine", "running", "waiting")
_ENGINE_NEEDED = ("generation_tput",)
_ITERATION = (
    r"^(?:Engine (?P<engine>\d+): )?Iteration\((?P<iteration>\d+)\): (?P<context_requests>\d+) context requests, "
    r"(?P<context_tokens>\d+) context tokens, (?P<requests>\d+) generation requests, "
    rf"(?P<tokens>\d+) generation tokens, iteration elapsed time: (?P<elapsed_ms>{_NUM}) ms(?P<dummy> \(dummy\))?"
)
# A prompt (logged up to 0.11.0) is a Python repr and is stepped over as one, so that nothing in it is taken for a
# parameter. The class behind `params:` tells calls that sample from those that pool or tokenise.
_REPR = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_REQUEST = (
    rf"(?s)^Received request (?P<request_id>\S+?): (?:prompt: {_REPR}, )?(?:sampling_)?params: "
    r"(?P<kind>\w+)\(?(?P<params>.*)"
)
_START = (
    r"^(?:Initializing an? (?:(?P<era>V\d) )?LLM engine \(v(?P<version>[^)]+)\)|"
    r"vLLM API server version (?P<api>\S+)|non-default args: |"
    r"Asynchronous scheduling is (?P<scheduling>enabled|disabled)\.)"
)


def parse(frame: pl.DataFrame, others: Sequence[LineSurface] = ()) -> Parsed:
    """Split lines into prefix and message, then hand each to the surface whose marker its message starts with.

    Args:
        frame: as `Engine.lines`.
        others: more surfaces, for the lines that are none of this module's.
    """
    parsed = Parsed()
    if "process" not in frame.columns:
        frame = frame.with_columns(process=pl.lit(None, pl.String))
    found, frame = _SHAPES.read(frame)
    for surface, rows in found.items():
        _IN_BULK[surface](surface, rows, parsed)
    if not frame.height:
        return parsed
    rest = _taken(split(frame), _SURFACES, parsed)
    if others and rest.height:
        _taken(rest, others, parsed)
    return parsed


def _taken(rows: pl.DataFrame, surfaces: Sequence[LineSurface], parsed: Parsed) -> pl.DataFrame:
    """The rows that no surface took."""
    left = pl.repeat(True, rows.height, eager=True)
    for surface, marker, extract in surfaces:
        mine = rows["message"].str.contains(marker).fill_null(False)
        if mine.any():
            extract(surface, rows.filter(mine), parsed)
            left &= ~mine
    return rows.filter(left)


def split(frame: pl.DataFrame) -> pl.DataFrame:
    """Columns `process`, `inner` and `message` beside the input's; lines that hold several records become several rows.

    Two processes that write to one pipe without a newline between, and lines pasted together by hand, give one line
    with several complete prefixes. Such a line is cut at each of them, unless the text before could be a user's.
    """
    rows = _prefixed(frame)
    # A second prefix ends with `] ` too: nearly no message of ours holds that, and a literal is found fast.
    again = rows["message"].str.contains("] ", literal=True).fill_null(False)
    if again.any():
        again &= rows["message"].str.contains(_BARE_PREFIX).fill_null(False)
    if not again.any():
        return rows
    # Only what stands before any quote or user's text is looked at for more prefixes.
    safe = pl.col("text").str.extract(rf"(?s)^(.*?)(?:{_FOREIGN}|$)", 1)
    pasted = rows.select(safe.str.count_matches(_BARE_PREFIX) > 1).to_series() & again
    cut = frame.filter(pasted).with_columns(_safe=safe).with_columns(
        text=pl.concat_str(
            pl.col("_safe").str.replace_all(rf"({_BARE_PREFIX})", "\x1e${1}"),
            pl.col("text").str.slice(pl.col("_safe").str.len_chars()),
        ).str.split("\x1e")
    )  # fmt: skip
    parts = cut.drop("_safe").explode("text").filter(pl.col("text").str.contains(_BARE_PREFIX))
    return pl.concat([rows.filter(~pasted), _prefixed(parts)]).sort("line", maintain_order=True)


def _prefixed(frame: pl.DataFrame) -> pl.DataFrame:
    if "process" not in frame.columns:
        frame = frame.with_columns(process=pl.lit(None, pl.String))
    cut = frame.select(pl.col("text").str.splitn("] ", 2).struct.unnest())
    heads = cut.select(pl.col("field_0").str.extract_groups(_WHOLE_PREFIX).struct.unnest())
    rows = frame.with_columns(
        inner=heads["inner"],
        message=cut["field_1"],
        process=heads.select(pl.concat_str("proc", "pid", separator=" ")).to_series(),
        _own=frame["process"],
    )
    plain = rows["inner"].is_not_null()
    rows = rows.with_columns(process=pl.coalesce("process", "_own")).drop("_own")
    if plain.all():
        return rows
    rest = _searched(frame.filter(~plain))
    return pl.concat([rows.filter(plain), rest.select(rows.columns)]).sort("line", maintain_order=True)


def _searched(frame: pl.DataFrame) -> pl.DataFrame:
    """The same for lines that are not exactly a prefix and a message."""
    groups = pl.col("text").str.extract_groups(_SPLIT).struct
    rows = frame.with_columns(
        _head=groups.field("head"),
        _proc=pl.concat_str(groups.field("proc"), groups.field("pid"), separator=" "),
        inner=groups.field("inner"),
        message=groups.field("message"),
    )
    foreign = pl.col("_head").str.contains(_FOREIGN).fill_null(False)
    # Without a prefix the record must open the line: only punctuation (quoting, Markdown) may stand before it.
    bare = pl.col("text").str.replace(r"^[^\p{L}\p{N}(]+", "")
    own = pl.col("message").is_not_null() & ~foreign
    return rows.with_columns(
        inner=pl.when(own).then("inner"),
        message=pl.when(own).then("message").otherwise(bare),
        process=pl.coalesce(pl.when(own).then("_proc"), "process"),
    ).drop("_head", "_proc")


def _keys(hit: pl.DataFrame, patterns: dict[str, str]) -> pl.DataFrame:
    """Text columns `_x`, one a pattern. One search a key is faster here than one match with a group for each."""
    base = hit.select("line", "offset", "stamp", "inner", "stream", "process", hash=pl.col("message").hash())
    columns = [pl.col("message").str.extract(pattern, 1).alias(f"_{name}") for name, pattern in patterns.items()]
    return pl.concat([base, hit.select(columns)], how="horizontal")


def _numbers(frame: pl.DataFrame, ints: tuple[str, ...], floats: tuple[str, ...]) -> pl.DataFrame:
    """Cast the text columns `_x` to numbers `x`; `nan` and what no counter reaches become null."""
    whole = {c: pl.col(f"_{c}").cast(pl.Int64, strict=False) for c in ints}
    return frame.with_columns(
        *(pl.when(number < _COUNT_LIMIT).then(number).alias(c) for c, number in whole.items()),
        *(pl.col(f"_{c}").cast(pl.Float64, strict=False).fill_nan(None).alias(c) for c in floats),
    ).drop([f"_{c}" for c in (*ints, *floats)])


def _keep(surface: str, frame: pl.DataFrame, needed: tuple[str, ...], parsed: Parsed) -> None:
    """Rows whose needed counts are all there are kept even if their tail is cut; the others are refused."""
    whole = pl.all_horizontal([pl.col(c).is_not_null() for c in needed])
    for row in frame.filter(~whole).select("line", "offset", *needed).iter_rows(named=True):
        lost = ", ".join(c for c in needed if row[c] is None)
        parsed.rejects.append(Reject(row["line"], f"incomplete line: no {lost}", surface, row["offset"]))
    good = frame.filter(whole)
    parsed.add(surface, good)
    parsed.claimed += good.height


def _v1(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    frame = _numbers(_keys(hit, _V1_KEYS), ("accepted", "drafted"), ("mal", "drafted_tput"))
    rates = pl.col("_per_pos").str.strip_chars(", ").str.split(", ")
    # A cut tail leaves a shorter number or fewer of them: three decimals each, and their sum is the mean.
    whole = rates.list.eval(pl.element().str.contains(r"^[01]\.\d{3}$")).list.all()
    frame = frame.with_columns(rates=pl.when(whole).then(rates).cast(pl.List(pl.Float64), strict=False))
    _v1_rows(surface, frame.drop("_per_pos"), parsed)


def _v1_rows(surface: str, frame: pl.DataFrame, parsed: Parsed) -> None:
    """Rates are kept where their sum is the mean."""
    total, slack = pl.col("rates").list.sum(), 0.00501 + 0.0005 * pl.col("rates").list.len()
    near = [(total + bonus - pl.col("mal")).abs() <= slack for bonus in (0, 1)]
    fits = pl.any_horizontal(near).fill_null(False)
    _keep(surface, frame.with_columns(rates=pl.when(fits).then("rates")), _COUNTED, parsed)


def _speculative(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """V0's cumulative line; or the wording of a few weeks in April 2025 (vllm#15902), per interval like V1's."""
    frame = _numbers(_keys(hit, _V0_KEYS), ("k", "matched", "drafted", "emitted"), ())
    early = pl.col("k").is_null() & pl.col("emitted").is_null() & pl.col("matched").is_not_null()
    v1 = frame.filter(early)
    if v1.height:
        v1 = v1.select("line", "offset", "stamp", "inner", "stream", "process", "hash", "drafted", accepted="matched")
        empty = dict.fromkeys(("mal", "drafted_tput"), pl.Float64)
        v1 = v1.with_columns(
            *(pl.lit(None, t).alias(c) for c, t in empty.items()), rates=pl.lit(None, pl.List(pl.Float64))
        )
        _keep("vllm.v1_line", v1, _COUNTED, parsed)
    _keep(surface, frame.filter(~early), ("k", "matched", "drafted", "emitted"), parsed)


def _stage(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    names = tuple(_STAGE_KEYS)
    _keep(surface, _numbers(_keys(hit, _STAGE_KEYS), (), names), names, parsed)


def _engine(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    frame = _numbers(_keys(hit, _ENGINE_KEYS), _ENGINE_INTS, ("prompt_tput", "generation_tput", "kv"))
    _engine_rows(surface, frame, parsed)


def _engine_rows(surface: str, frame: pl.DataFrame, parsed: Parsed) -> None:
    _keep(surface, frame, _ENGINE_NEEDED, parsed)


def _iteration(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    names = ("engine", "iteration", "context_requests", "context_tokens", "requests", "tokens")
    groups = hit.select(pl.col("message").str.extract_groups(_ITERATION).alias("_g")).unnest("_g")
    base = hit.select("line", "offset", "stamp", "inner", "stream", "process", hash=pl.col("message").hash())
    frame = pl.concat([base, groups.rename(lambda c: f"_{c}")], how="horizontal")
    frame = frame.filter(pl.col("_dummy").is_null()).drop("_dummy")  # DP dummy steps do no request's work
    _keep(surface, _numbers(frame, names, ("elapsed_ms",)), ("iteration", "requests", "tokens", "elapsed_ms"), parsed)


def _request(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """The id and the sampling parameters. Prompts (logged up to 0.11.0) end here."""
    groups = hit.select(pl.col("message").str.extract_groups(_REQUEST).alias("_g")).unnest("_g")
    base = hit.select("line", "offset", "stamp", "inner", "stream", "process", hash=pl.col("message").hash())
    params = pl.col("params")
    frame = pl.concat([base, groups], how="horizontal").with_columns(
        temperature=params.str.extract(rf"\btemperature=({_NUM})[,)]", 1).cast(pl.Float64, strict=False).fill_nan(None),
        top_p=params.str.extract(rf"\btop_p=({_NUM})[,)]", 1).cast(pl.Float64, strict=False).fill_nan(None),
    )
    # Tokenize and pooling calls sample nothing: `params: None`, `params: PoolingParams(…)`.
    sampled = frame.filter(pl.col("kind").eq_missing("SamplingParams") | pl.col("kind").is_null())
    _keep(surface, sampled.drop("params", "kind"), ("request_id",), parsed)


def _start(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    groups = hit.select(pl.col("message").str.extract_groups(_START).alias("_g"), "message").unnest("_g")
    base = hit.select("line", "offset", "stamp", "inner", "stream", "process", hash=pl.col("message").hash())
    frame = pl.concat([base, groups], how="horizontal")
    # Settings are too long to be said by chance; a sentence is vLLM's behind its prefix, or in a record with a time.
    own = pl.col("scheduling").is_null() | pl.col("inner").is_not_null() | pl.col("stamp").is_not_null()
    _keep(surface, frame.filter(pl.col("message").str.contains(_START) & own), ("message",), parsed)


_V1_LINE, _ENGINE_LINE = (
    r"^SpecDecoding metrics: ",
    r"^(?:Engine \d+: |\d+ Engines Aggregated: )?Avg prompt throughput: ",
)
_SURFACES: Sequence[LineSurface] = (
    ("vllm.v1_line", _V1_LINE, _v1),
    ("vllm.v0_line", r"^Speculative metrics: ", _speculative),
    ("vllm.stage_times", r"^SpecDecodeWorker stage times: ", _stage),
    ("vllm.engine_line", _ENGINE_LINE, _engine),
    ("vllm.iteration_line", r"^(?:Engine \d+: )?Iteration\(", _iteration),
    ("vllm.request_line", r"^Received request ", _request),
    (
        "vllm.start",
        r"^(?:Initializing an? |non-default args: |vLLM API server version |Asynchronous scheduling is )",
        _start,
    ),
)
# The lines that a busy server writes every few seconds.
_SHAPES = shapes.Reader(
    _WHOLE_PREFIX,
    (
        shapes.Kind("vllm.v1_line", _V1_LINE, _V1_KEYS, _COUNTED, (*_COUNTED, "mal", "drafted_tput"), rates="per_pos"),
        shapes.Kind("vllm.engine_line", _ENGINE_LINE, _ENGINE_KEYS, _ENGINE_INTS, _ENGINE_NEEDED),
    ),
)
_IN_BULK = {"vllm.v1_line": _v1_rows, "vllm.engine_line": _engine_rows}
