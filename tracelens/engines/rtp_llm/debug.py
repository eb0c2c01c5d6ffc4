"""Text lines of RTP-LLM: engine.log at DEBUG (both engines) and the configuration dump of main_<rank>.log.

Prefix (alog `[%%d] [%%l] [%%p:%%t] %%m`, then RTP-LLM's own):

    [stamp] [LEVEL] [pid:tid] [RANK r][ip][file:line][function] message

The function's text can hold brackets (`[with T = ...]`), and a message can hold what a user wrote. So between the
prefix and the message only bracket groups (nested ones too) may stand, and the message must end with the line: a metric
that is quoted inside another message is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines.base import Parsed, Reject

SP = "rtp.sp_engine_debug"
MTP = "rtp.mtp_debug"
CONFIG = "rtp.config_dump"

_GROUP = r"\[(?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*\]"
_PREFIX = (
    r"^\[(?P<inner>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3,6})\] \[[A-Z0-9]+\] \[(?P<pid>\d+):(?P<tid>\d+)\] ?"
    rf"(?:(?:{_GROUP})*?\[RANK (?P<rank>\d+)\])?(?:{_GROUP})* ?"
)
_SAMPLING = r"topk = \[-?\d+\], topp = \[(?P<top_p>[-+.0-9a-z]+)\], "

# (kind, what tells it apart, its head, the whole message). A head without the whole is a record that was cut.
_Form = tuple[str, str, str, str]

# 6ac09b2fb (2025-01-09: times) .. c518bf872 (2026-03-15: engine deleted); per stream since 2025-02-25 (the id through
# %d, so 32 bits, until 2025-09), totals since 2025-09-04, update_time until 2025-06-02.
SP_FORMS: Sequence[_Form] = (
    (
        "stream",
        "propose_token_num = [",
        r"stream \[-?\d+\], topk = ",
        rf"stream \[(?P<id>-?\d+)\], {_SAMPLING}propose_token_num = \[(?P<propose>\d+)\], "
        r"accept_token_num = \[(?P<accept>\d+)\]",
    ),
    (
        "plain",
        "propose_tokens = 0, accept_tokens = 1",
        r"stream \[-?\d+\], topk = ",
        rf"stream \[(?P<id>-?\d+)\], {_SAMPLING}propose_tokens = (?P<propose>0), accept_tokens = (?P<accept>1)",
    ),
    (
        "totals",
        "propose_token_num: ",
        "propose_token_num: ",
        r"propose_token_num: (?P<propose>\d+), accept_token_num: (?P<accept>\d+), stream_num: (?P<streams>\d+)",
    ),
    (
        "times",
        "total_step_time: ",
        "total_step_time: ",
        r"total_step_time: (?P<total>\d+), propose_time: (?P<draft>\d+), score_time: (?P<target>\d+), "
        r"sampler_time: (?P<sample>\d+)(?:, update_time: (?P<update>\d+))?",
    ),
)

# MtpExecutor on main: loop lines since 2026-03-31, stream lines since 2026-03-17, ids as text since 2026-08-10.
MTP_FORMS: Sequence[_Form] = (
    (
        "loop",
        "[MTP draftDecode] loop step ",
        r"\[MTP draftDecode\] loop step \d+/\d+ start",
        r"\[MTP draftDecode\] loop step \d+/(?P<loops>\d+) start, batch_size (?P<batch>\d+)",
    ),
    (
        "stream",
        "swap cache blocks",
        r"\[stream ",
        # A trace id may hold anything: the last (a -> b) before the end is the engine's own.
        r"\[stream (?:request_id=(?P<rid>[^\s\]]+)(?: .*)?|(?P<id>-?\d+)) \((?P<before>\d+) -> (?P<after>\d+)\)\] "
        r"(?:no swap cache blocks|swap cache blocks: -?\d+ -> -?\d+, -?\d+ -> -?\d+)",
    ),
    ("done", "dispatch decode done", "dispatch decode done", "dispatch decode done"),
)

_COLUMNS = ("line", "offset", "stamp", "stream")
_FIELDS: dict[str, Sequence[str]] = {
    SP: ("propose", "accept", "streams", "total", "draft", "target", "sample", "update"),
    MTP: ("loops", "batch", "before", "after"),
}
NEEDLES: Sequence[bytes] = (
    *(needle.encode() for _, needle, _, _ in (*SP_FORMS, *MTP_FORMS)),
    b"gen_num_per_cycle: ",
    # A line of the dump has nothing else to tell it by.
    *(f"type: {word}".encode() for word in ("vanilla", "mtp", "eagle", "deterministic", "dspark")),
)


def lines(frame: pl.DataFrame) -> Parsed:
    """Events of engine.log, one row a line, in `kind` and the fields of the line's form."""
    parsed = Parsed()
    for surface, forms in ((SP, SP_FORMS), (MTP, MTP_FORMS)):
        found = [_events(frame, surface, form, parsed.rejects) for form in forms]
        events = pl.concat(found, how="diagonal").sort("line")
        parsed.claimed += events.height
        parsed.add(surface, events)
    config = _config(frame)
    parsed.claimed += config.height
    parsed.add(CONFIG, config)
    return parsed


def _events(frame: pl.DataFrame, surface: str, form: _Form, rejects: list[Reject]) -> pl.DataFrame:
    """The lines of one form. One that was cut stays as an event without figures: it still closes or opens a step."""
    kind, needle, head, message = form
    near = frame.filter(pl.col("text").str.contains(needle, literal=True))
    near = near.with_columns(pl.col("text").str.extract_groups(f"{_PREFIX}{message}\\s*$").alias("found"))
    found = near.unnest("found")
    numbers = [name for name in _FIELDS[surface] if name in found.columns]
    good = found.filter(pl.col("inner").is_not_null()).select(
        *_COLUMNS,
        *(name for name in ("inner", "pid", "tid", "rank", "id", "rid") if name in found.columns),
        *(pl.col(name).cast(pl.Float64, strict=False) for name in ("top_p",) if name in found.columns),
        *(pl.col(name).cast(pl.Int64, strict=False) for name in numbers),
    )
    rest = found.filter(pl.col("inner").is_null() & pl.col("text").str.contains(_PREFIX + head))
    cut = rest.select(*_COLUMNS, pl.col("text").str.extract_groups(_PREFIX).alias("found")).unnest("found")
    events = pl.concat([good.with_columns(cut=pl.lit(False)), cut.with_columns(cut=pl.lit(True))], how="diagonal")
    events = events.with_columns(pl.lit(kind).alias("kind"))
    for line, offset in events.filter("cut").select("line", "offset").rows():
        rejects.append(Reject(line, f"{kind} line is not whole", surface, offset))
    return events


def _config(frame: pl.DataFrame) -> pl.DataFrame:
    """`gen_num_per_cycle: K` and `type: word` of the start-up dump, each a line of its own (rtp-llm.md 6)."""
    found = frame.with_columns(
        pl.col("text").str.extract(r"(?:^|[\]\s])gen_num_per_cycle: (\d{1,4})\s*$").cast(pl.Int32).alias("k"),
        pl.col("text").str.extract(r"^\s*(?:sp_)?type: ([a-z0-9]+)\s*$").alias("method"),
    )
    found = found.filter(pl.col("k").is_not_null() | pl.col("method").is_not_null())
    return found.select(*_COLUMNS, "k", "method")
