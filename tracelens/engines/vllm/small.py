"""The smaller records of vLLM: forward-time tables, ends of requests, logged outputs and bodies; padding, MFU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracelens.engines.base import JsonRecord, Parsed, Reject, Surface
from tracelens.engines.rows import once
from tracelens.engines.versions import Range, Switch, Versions, Way
from tracelens.engines.vllm import forward_times, lines, responses
from tracelens.engines.vllm.releases import since, v1

BATCHSIZE = "vllm.batchsize_line"
MIXED = "vllm.batchsize_mixed"
_FINISH = "vllm.finish_line"
_OUTPUT = "vllm.output_line"
_PADDING = "vllm.cudagraph_table"
_MFU = "vllm.mfu_line"

_INTERVAL = "VLLM_LOG_BATCHSIZE_INTERVAL=10 on a test machine (it synchronises every forward)"
SURFACES: tuple[Surface, ...] = (
    Surface(
        BATCHSIZE,
        "Batchsize forward time stats (medians of a draft model's and verify passes at one concurrency)",
        Versions(v1("0.7"), " (V1 model runner)"),
        ("rho_verify",),
        Switch(
            f"{_INTERVAL}, with --enforce-eager and VLLM_USE_V2_MODEL_RUNNER=0; one concurrency, long outputs",
            Way(Range("0.10.2", "0.28"), f"{_INTERVAL}, with --enforce-eager; one concurrency, long outputs"),
            Way(
                Range(last="0.10.1"),
                f"{_INTERVAL}, with --enforce-eager; one concurrency, long outputs. Of a draft model only (method "
                "draft_model): the times of other drafters are in no log before 0.10.2",
            ),
        ),
    ),
    Surface(
        MIXED,
        "Batchsize forward time stats without the pattern of draft and verify passes (no figure comes from it)",
        Versions(v1("0.7")),
        (),
        "a draft model, one concurrency, long outputs, --enforce-eager and VLLM_USE_V2_MODEL_RUNNER=0",
    ),
    Surface(
        _FINISH,
        "Finished request, Aborted request (end of a request)",
        Versions("finished ", Range("0.4.2", "0.10"), ", aborted ", since("0.4.2")),
        ("ts_end",),
        "on by default before 0.10.1, then --enable-log-requests",
    ),
    Surface(
        _OUTPUT,
        "Generated response (end of a request; the text is not read)",
        Versions(since("0.10.1")),
        ("finish_reason",),
        "--enable-log-requests --enable-log-outputs (it logs what users get)",
    ),
    Surface(
        _PADDING,
        "CUDA graph table (padding of the batches; no figure comes from it)",
        Versions(v1("0.13")),
        (),
        "--cudagraph-metrics",
    ),
    Surface(_MFU, "MFU line (no figure comes from it)", Versions(v1("0.14")), (), "--enable-mfu-metrics"),
)

NEEDLES: tuple[bytes, ...] = (
    b"Batchsize forward time stats ",
    b"Finished request ",
    b"Aborted request",
    b" aborted.",
    b"Generated response ",
    b"response_body=",
    b"| Unpadded Tokens ",
    b"MFU: ",
)

# Tokens in a forward, how many such forwards, their median in ms. Only what was seen twice or more is listed.
_TRIPLE = r"\((\d{1,9}), (\d{1,12}), (\d{1,9}(?:\.\d+)?|nan)\)"
_TABLE = r"^Batchsize forward time stats \(batchsize, count, median_time\(ms\)\): \[(.*)\]\s*$"
_FINISHED = r"^Finished request (\S+)\.\s*$"
_ABORTED = r"^(?:Aborted request (\S+)|Aborted request\(s\) (\S+)|Request (\S+) aborted)\.\s*$"
# What stands between is the user's: only the two ends are read.
_RESPONSE = r"^Generated response (\S+?)(?: \(streaming (delta|complete)\))?: output: "
# Only words the engine itself uses: behind a cut text anything may stand.
_REASON = r", finish_reason: (stop|length|abort|error|repetition|tool_calls|function_call|content_filter)\s*$"
_COLUMNS = ("line", "offset", "stamp", "inner", "stream", "process")


def request_rows(text: Mapping[str, pl.DataFrame]) -> list[pl.DataFrame]:
    """Canonical requests of the lines that tell of a request's end; frames come with their time and run."""
    build = {_FINISH: _finish_rows, _OUTPUT: _output_rows}
    return [rows(once(text[surface], "process")) for surface, rows in build.items() if surface in text]


def _base(hit: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
    return hit.select(*_COLUMNS, pl.col("message").hash().alias("hash"), *more)


def _keep(surface: str, frame: pl.DataFrame, whole: pl.Expr, reason: str, parsed: Parsed) -> None:
    for line, offset in frame.filter(~whole).select("line", "offset").iter_rows():
        parsed.rejects.append(Reject(line, reason, surface, offset))
    good = frame.filter(whole).drop("_whole", strict=False)
    parsed.add(surface, good)
    parsed.claimed += good.height


def _table(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """What decode steps explain of each table; a table that has none of it is of the surface without figures."""
    inside = pl.col("message").str.extract(_TABLE, 1)
    frame = _base(hit, inside.alias("_inside"), inside.str.extract_all(_TRIPLE).alias("_triples"))
    numbers = {"sizes": (1, pl.Int64()), "passes": (2, pl.Int64()), "medians": (3, pl.Float64())}
    frame = frame.with_columns(
        pl.col("_triples").list.eval(pl.element().str.extract(_TRIPLE, group).cast(kind, strict=False)).alias(name)
        for name, (group, kind) in numbers.items()
    )
    rest = pl.col("_inside").str.replace_all(_TRIPLE, "").str.strip_chars(", ")
    whole = ((rest == "") & (pl.col("sizes").list.len() > 0)).fill_null(False)
    frame = frame.with_columns(_whole=whole).drop("_inside", "_triples")
    reason = "incomplete line: the table of forward times is not whole"
    frame = forward_times.with_patterns(frame)
    whole, none = pl.col("_whole"), pl.col("k").is_null()
    _keep(surface, frame.filter(~none | ~whole), whole, reason, parsed)
    _context(MIXED, frame.filter(none & whole), parsed)


def _finish(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    # Other programs say the same of their requests: the prefix, or the process in a JSON log, tells that it is vLLM.
    hit = hit.filter(pl.col("inner").is_not_null() | pl.col("process").is_not_null())
    message = pl.col("message")
    aborted = message.str.extract_groups(_ABORTED).struct
    several = aborted.field("2").str.split(",")
    one = pl.coalesce(message.str.extract(_FINISHED, 1), aborted.field("1"), aborted.field("3"))
    ids = pl.when(one.is_not_null()).then(pl.concat_list(one)).otherwise(several)
    ended = message.str.starts_with("Finished")
    frame = _base(hit, ids.alias("request_id"), pl.when(~ended).then(pl.lit("abort")).alias("finish_reason"))
    whole = pl.col("request_id").is_not_null()
    _keep(surface, frame, whole, "incomplete line: no request_id", parsed)


def _output(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """The id and why it ended. Of a stream's pieces only the last, which says why, is kept."""
    message = pl.col("message")
    groups = message.str.extract_groups(_RESPONSE).struct
    frame = _base(
        hit,
        groups.field("1").alias("request_id"),
        groups.field("2").alias("part"),
        message.str.extract(_REASON, 1).alias("finish_reason"),
    )
    frame = frame.filter(pl.col("part").ne_missing("delta") | pl.col("finish_reason").is_not_null())
    _keep(surface, frame, pl.col("request_id").is_not_null(), "incomplete line: no request_id", parsed)


def _context(surface: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """Records that are recognised and counted; the tables have no column for what they say."""
    parsed.add(surface, hit.select(*_COLUMNS))
    parsed.claimed += hit.height


def _body(_: str, hit: pl.DataFrame, parsed: Parsed) -> None:
    """`response_body={…}` (VLLM_DEBUG_LOG_API_SERVER_RESPONSE=true, 0.8.5 and later): a response as clients log it.

    The braces are the message's own, and the body brings another pair. Bodies without `metrics` are no record.
    """
    body = pl.col("message").str.strip_prefix("response_body=").str.strip_chars()
    doubled = body.str.contains(r"^\{\s*[{\[]")
    body = pl.when(doubled).then(body.str.strip_prefix("{").str.strip_suffix("}")).otherwise(body)
    keys = [key.decode() for key in responses.KEYS]
    rows = hit.with_columns(_body=body).filter(body.str.contains_any(keys))
    decode, records = msgspec.json.Decoder().decode, []
    for line, offset, stamp, stream, text in rows.select("line", "offset", "stamp", "stream", "_body").iter_rows():
        try:
            value: Any = decode(text)
        except (msgspec.MsgspecError, RecursionError):
            parsed.rejects.append(Reject(line, "response_body: broken JSON", "vllm.response", offset))
            continue
        if isinstance(value, dict):
            records.append(JsonRecord(line, offset, stamp, stream, value))
    found = responses.parse(records)
    own = rows.select("line", _inner="inner").unique("line", keep="first", maintain_order=True)
    for surface, frames in found.frames.items():
        found.frames[surface] = [
            frame.join(own, on="line", how="left", maintain_order="left")
            # The server wrote it into its own log: it is of the run whose start stands above it.
            .with_columns(inner=pl.coalesce("inner", "_inner"), in_log=pl.lit(True))
            .drop("_inner")
            for frame in frames
        ]
    parsed.merge(found)


def _finish_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """One row an id; V1 tells of an abort twice."""
    frame = frame.explode("request_id").filter(pl.col("request_id") != "")
    told = pl.struct("run_key", "stream", "request_id").is_first_distinct()
    return _ends(frame.filter(pl.col("finish_reason").is_null() | told))


def _output_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """One row a response: the piece of a stream that says why it ended belongs to the line that closes the stream."""
    key = ["run_key", "stream", "request_id"]
    frame = frame.sort("line", maintain_order=True)
    # With n > 1 the server logs each choice under the same id, at once.
    choices = pl.struct(*key, "part", "inner", "stamp").is_first_distinct()
    frame = frame.filter(choices | (pl.col("inner").is_null() & pl.col("stamp").is_null()))
    closed = (pl.col("part").ne_missing("delta")).cast(pl.Int64)
    frame = frame.with_columns(_nth=(closed.cum_sum() - closed).over(key))
    rows = frame.group_by(*key, "_nth", maintain_order=True).agg(
        pl.col("line", "ts", "ts_basis", "process").last(), pl.col("finish_reason").drop_nulls().last()
    )
    return _ends(rows.with_columns(surface=pl.lit(_OUTPUT)))


def _ends(frame: pl.DataFrame) -> pl.DataFrame:
    if "surface" not in frame.columns:
        frame = frame.with_columns(surface=pl.lit(_FINISH))
    return frame.select(
        "run_key", "process", "request_id", "finish_reason", "ts_basis", "surface", source_line="line", ts_end="ts"
    )


# For `lines.parse`.
LINES: Sequence[lines.LineSurface] = (
    (BATCHSIZE, r"^Batchsize forward time stats ", _table),
    # One word behind it: without the full stop it was cut.
    (_FINISH, r"^(?:(?:Finished|Aborted) request(?:\(s\))? \S*|Request \S+ aborted\.)\s*$", _finish),
    (_OUTPUT, r"^Generated response \S+?(?: \(streaming \w+\))?: output", _output),
    # As JSON the whole table is one message, and its title stands before it.
    (_PADDING, r"(?s)^(?:\W*CUDAGraph .*)?\|? ?Unpadded Tokens +\| Padded Tokens +\|", _context),
    (_MFU, r"^(?:Engine \d+: |\d+ Engines Aggregated: )?MFU: [\d.]+ TF/s", _context),
    ("vllm.response", r"^response_body=", _body),
)
