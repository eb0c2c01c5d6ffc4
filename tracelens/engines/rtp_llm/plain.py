"""Requests and steps of the usual form in bulk: a site writes thousands a second, and they are alike.

A record whose fields all have the types that they should is read column by column; `access` and `steps` say what it
means, and read every other one: an unusual form, a field that cannot be, an identity that does not hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec import UNSET, Meta, UnsetType

from tracelens.engines.base import JsonRecord, Parsed
from tracelens.engines.rows import frame_by_column
from tracelens.engines.rtp_llm import access, steps
from tracelens.engines.rtp_llm.aux_info import LONGEST_DRAFT, PER_POS, ROUNDS
from tracelens.engines.units import INT32_MAX, finish_reason

_Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]
_Milliseconds = Annotated[float, Meta(ge=0, le=1e12)]
_Microseconds = Annotated[float, Meta(ge=0, le=1e15)]
_Text = Annotated[str, Meta(pattern=r"\A[\x00-\x7f]*\Z")]  # no lone surrogate, without a look at each letter
_Word = int | str | None
_Form = TypeVar("_Form", bound=msgspec.Struct)
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class _Part(msgspec.Struct, gc=False):
    """A record, or an object of one; keys that are not named are passed over."""


class _Config(_Part):
    temperature: float | None = None
    top_p: float | None = None
    force_sp_accept: bool | None = None
    task_id: _Word = None


class _Extra(_Config):
    generate_config: _Config | None = None


class _Fields(_Part):
    task_type: _Word = None
    task: _Word = None


class _Body(_Config):
    model: _Word = None
    source: _Word = None
    generate_config: _Config | None = None
    extra_configs: _Extra | None = None
    extend_fields: _Fields | None = None


class _Request(_Part):
    request_json: _Body


class _Aux(_Part):
    iter_count: _Count | None = None
    input_len: _Count | None = None
    output_len: _Count | None = None
    reuse_len: _Count | None = None
    speculative_draft_rounds: _Count | None = None
    speculative_accepted_tokens_per_pos: Annotated[list[_Count], Meta(max_length=LONGEST_DRAFT)] | None = None
    cost_time: _Milliseconds | None = None
    first_token_cost_time: _Milliseconds | None = None
    wait_time: _Milliseconds | None = None


class _Usage(_Part):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Choice(_Part):
    finish_reason: _Word = None


class _Answer(_Part):
    aux_info: _Aux
    usage: _Usage | None = None
    choices: list[_Choice] = []
    response_batch: UnsetType = UNSET


class _Response(_Part):
    responses: Annotated[list[_Answer], Meta(min_length=1, max_length=1)]
    exception: None = None


class _Access(_Part):
    """A request that gave one answer, as the Python front end logs it."""

    request: _Request
    response: _Response
    id: int | _Text
    log_time: _Text
    event: UnsetType = UNSET


class _Stream(_Part):
    propose_token_num: _Count
    accept_token_num: _Count
    request_id: int | _Text | None = None
    top_p: float | None = None


class _Step(_Part):
    """A step that lists its streams."""

    step_latency_us: _Microseconds
    streams: Annotated[list[_Stream], Meta(min_length=1)]
    ts_us: int | None = None
    dp_rank: int | _Text | None = None
    spec_steps: _Count | None = None
    accept_lag_steps: _Count | None = None
    generate_batch_size: _Count | None = None
    total_stream_num: _Count | None = None
    total_propose_token_num: _Count | None = None
    total_accepted_token_num: _Count | None = None
    propose_step_latency_us: _Microseconds | None = None
    score_step_latency_us: _Microseconds | None = None
    speculative_sampler_latency_us: _Microseconds | None = None
    request: UnsetType = UNSET
    aux_info: UnsetType = UNSET
    event: UnsetType = UNSET


_MS = ("cost_time", "first_token_cost_time", "wait_time")
_PLACE = {"line": pl.Int64} | dict.fromkeys(("stamp", "stream", "inner", "request_id", "finish_reason"), pl.String)
_AUX = dict.fromkeys(_Aux.__struct_fields__, pl.Int64) | dict.fromkeys(_MS, pl.Float64) | {PER_POS: pl.List(pl.Int64)}
_USAGE = dict.fromkeys(_Usage.__struct_fields__, pl.Int64)
_NO_CONFIG, _NO_EXTRA, _NO_FIELDS, _NO_USAGE = _Config(), _Extra(), _Fields(), _Usage()


def take(records: Sequence[JsonRecord], parsed: Parsed) -> list[JsonRecord]:
    """Read the records of the usual form.

    Args:
        records: any.
        parsed: gets their rows, as `access.SCHEMA` and `steps.SCHEMA` say.

    Returns:
        The records that are left, in their order.
    """
    lines = Counter(record.line for record in records)
    # Several records of one line (Loki's pushes) keep their order among each other where one road reads them all.
    single = [record for record in records if lines[record.line] == 1]
    left = _bulk(single, "log_time", _Access, _requests, access.ACCESS, parsed)
    left = _bulk(left, "streams", _Step, _streams, steps.SURFACE, parsed)
    if len(single) < len(records):
        left += [record for record in records if lines[record.line] > 1]
    return sorted(left, key=lambda record: record.line)


def _bulk(
    records: Sequence[JsonRecord], key: str, form: type[_Form],
    read: Callable[[Sequence[JsonRecord], Sequence[_Form]], tuple[pl.DataFrame, Bools]], surface: str, parsed: Parsed,
) -> list[JsonRecord]:  # fmt: skip
    """Read the records of one form; the others."""
    mine, forms, left = _of_form(records, key, form)
    if mine:
        frame, good = read(mine, forms)
        parsed.add(surface, frame)
        parsed.claimed += int(good.sum())
        left += [mine[i] for i in np.flatnonzero(~good).tolist()]
    return left


def _of_form(
    records: Sequence[JsonRecord], key: str, form: type[_Form]
) -> tuple[list[JsonRecord], list[_Form], list[JsonRecord]]:
    """The records of a form, which has `key`; what they hold; and the other records."""
    # What is no ValidationError: a lone surrogate in the place of a number, and what no double holds (msgspec 0.21).
    convert, invalid = msgspec.convert, (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
    mine: list[JsonRecord] = []
    forms: list[_Form] = []
    others: list[JsonRecord] = []
    for record in records:
        if key not in record.value:
            others.append(record)
            continue
        try:
            forms.append(convert(record.value, form))
            mine.append(record)
        except invalid:
            others.append(record)
    return mine, forms, others


def _all(parts: Iterable[Any], name: str) -> list[Any]:
    return list(map(attrgetter(name), parts))


def _where(records: Sequence[JsonRecord]) -> dict[str, Any]:
    return {name: _all(records, name) for name in ("line", "stamp", "stream")}


def _shaped(frame: pl.DataFrame, schema: dict[str, Any]) -> pl.DataFrame:
    given = set(frame.columns)
    return frame.select((pl.col(n) if n in given else pl.lit(None)).cast(t).alias(n) for n, t in schema.items())


# -- requests -----------------------------------------------------------------------------------------------------


def _requests(records: Sequence[JsonRecord], forms: Sequence[_Access]) -> tuple[pl.DataFrame, Bools]:
    """Rows of the requests that keep all identities, and which these are; see `access`."""
    answers = [form.response.responses[0] for form in forms]
    aux = _all(answers, "aux_info")
    usage = [answer.usage or _NO_USAGE for answer in answers]
    ended = cache(lambda word: finish_reason(access.label_of(word)))
    columns = _where(records) | {
        "inner": _all(forms, "log_time"),
        "request_id": [None if form.id == "" else str(form.id) for form in forms],
        "finish_reason": [ended(a.choices[0].finish_reason) if a.choices else None for a in answers],
    }
    columns |= {name: _all(aux, name) for name in _AUX} | {name: _all(usage, name) for name in _USAGE}
    frame = frame_by_column(columns, _PLACE | _AUX | _USAGE)
    frame = _timed(_counted(frame.with_columns(_settings([form.request.request_json for form in forms]))))
    good = frame["_good"].to_numpy()
    return _shaped(frame.filter("_good").with_columns(error=pl.lit(False)), access.SCHEMA), good


def _settings(bodies: Sequence[_Body]) -> list[pl.Series]:
    """As `access.settings`."""
    extras = [body.extra_configs or _NO_EXTRA for body in bodies]
    places: list[Sequence[_Config]] = [bodies, [body.generate_config or _NO_CONFIG for body in bodies], extras]
    places.append([extra.generate_config or _NO_CONFIG for extra in extras])
    fields = [body.extend_fields or _NO_FIELDS for body in bodies]
    words = [_all(fields, "task_type"), _all(fields, "task"), *(_all(place, "task_id") for place in places[1:])]
    words.append(_all(bodies, "source"))
    label, model = cache(access.label_of), cache(access.model_of)

    def first(name: str, kind: Any) -> pl.Series:
        cells = [pl.Series(name, _all(place, name), dtype=kind) for place in places]
        return pl.select(pl.coalesce(cells)).to_series()

    def between(name: str, high: float) -> pl.Series:
        number = first(name, pl.Float64)
        return number.to_frame().select(pl.when(pl.col(name).is_between(0, high)).then(name)).to_series()

    return [
        pl.Series("model", [model(word) for word in _all(bodies, "model")], dtype=pl.String),
        pl.Series(
            "task_type", [next(filter(None, map(label, some)), None) for some in zip(*words, strict=True)], pl.String
        ),
        between("temperature", 1e6),
        between("top_p", 1),
        first("force_sp_accept", pl.Boolean).alias("forced_acceptance"),
    ]


def _counted(frame: pl.DataFrame) -> pl.DataFrame:
    """Tokens and rounds, as `aux_info.tokens_of`, `accepted_of` and `plain_counts`; `_good` where identities hold."""
    rounds, per_pos = pl.col("rounds"), pl.col("per_pos")
    frame = frame.rename({ROUNDS: "rounds", PER_POS: "per_pos"}).with_columns(
        prompt_tokens=pl.coalesce("input_len", "prompt_tokens"),
        output_tokens=pl.coalesce("output_len", "completion_tokens"),
        cached_tokens="reuse_len",
        iterations=pl.when(pl.col("iter_count") > 0).then(pl.col("iter_count") - 1),
        accepted=per_pos.list.sum(),
        _k=per_pos.list.len().cast(pl.Int64),
        _edges=pl.concat_list(rounds, per_pos, pl.lit(0, pl.Int64)),
    )
    known = (pl.col("_k") > 0) & rounds.is_not_null()
    exactly = pl.col("_edges").list.eval(pl.element().shift(1) - pl.element()).list.slice(1)
    frame = frame.with_columns(accepted_hist=pl.when(known).then(exactly))
    none = (pl.col("_k") == 0) & (rounds == 0)
    falls = known & (pl.col("accepted_hist").list.min() >= 0)
    most = pl.col("accepted") + pl.max_horizontal("rounds", pl.col("iterations").fill_null(0))
    emitted = pl.max_horizontal(pl.col("output_tokens") - 1, pl.when(pl.col("output_tokens").is_not_null()).then(0))
    counted = pl.col("accepted").is_not_null()
    return frame.with_columns(
        drafted=rounds * pl.col("_k"),
        num_speculative_tokens=pl.when(pl.col("_k") > 0).then("_k"),
        emitted=pl.when(counted & rounds.is_not_null()).then(pl.min_horizontal(emitted, most)).otherwise(emitted),
        _good=per_pos.is_null() | (none | falls).fill_null(False),
    ).with_columns(
        emitted=pl.when(pl.col("output_tokens").is_not_null()).then("emitted"),
        counts_basis=pl.when(counted)
        .then(pl.lit("logged"))
        .when(pl.col("output_tokens").is_not_null())
        .then(pl.lit("derived")),
    )


def _timed(frame: pl.DataFrame) -> pl.DataFrame:
    """TTFT, end to end, queue, decode time and TPOT, as `aux_info.times_of`."""
    total, first, wait = (_micros(name, 1000) for name in _MS)
    total, first = (pl.when(time > 0).then(time) for time in (total, first))
    frame = frame.with_columns(ttft_us=first, e2e_us=pl.when(total < first).then(None).otherwise(total), queue_us=wait)
    frame = frame.with_columns(decode_us=pl.col("e2e_us") - pl.col("ttft_us"))
    several = pl.col("output_tokens") > 1
    frame = frame.with_columns(tpot_us=pl.when(several).then(pl.col("decode_us") / (pl.col("output_tokens") - 1)))
    return frame.with_columns(tpot_basis=pl.when(pl.col("tpot_us").is_not_null()).then(pl.lit("derived")))


def _micros(name: str, factor: int) -> pl.Expr:
    """As `units.duration`."""
    return (pl.col(name) * factor + 0.5).floor().cast(pl.Int64)


# -- steps --------------------------------------------------------------------------------------------------------


def _streams(records: Sequence[JsonRecord], forms: Sequence[_Step]) -> tuple[pl.DataFrame, Bools]:
    """A row a stream of the steps that keep all identities, and which steps these are; see `steps`."""
    sizes = np.fromiter((len(form.streams) for form in forms), np.int64, len(forms))
    step = np.repeat(np.arange(len(forms)), sizes)
    streams = [stream for form in forms for stream in form.streams]
    propose, accept = (np.asarray(_all(streams, f"{n}_token_num"), np.int64) for n in ("propose", "accept"))
    starts = np.cumsum(sizes) - sizes
    good = np.logical_and.reduceat((accept >= 1) & (accept <= propose + 1), starts)
    good &= _adds_up(forms, propose, accept, starts)
    frame = _steps(records, forms).with_columns(
        batch_size=pl.when(pl.col("batch_size") > 0).then("batch_size").otherwise(pl.Series(sizes)),
        has_prefill=np.minimum.reduceat(propose, starts) == 0,
    )
    rows = _phased(frame, np.maximum.reduceat(propose, starts) > 0)[step].with_columns(
        request_id=_ids(_all(streams, "request_id")),
        top_p=pl.Series(_all(streams, "top_p"), dtype=pl.Float64),
        propose=propose,
        accept=accept,
    )
    rows = rows.with_columns(top_p=pl.when(pl.col("top_p").is_between(0, 1)).then("top_p"))
    return _shaped(rows.filter(pl.Series(good[step])), steps.SCHEMA), good


def _steps(records: Sequence[JsonRecord], forms: Sequence[_Step]) -> pl.DataFrame:
    """What a step says of itself, a row each."""
    low, high = steps.EPOCH_US
    stamps = [t if t is not None and low <= t <= high else None for t in _all(forms, "ts_us")]
    counts = {"num_speculative_tokens": "spec_steps", "lag": "accept_lag_steps", "batch_size": "generate_batch_size"}
    frame = pl.DataFrame(
        _where(records)
        | {"at": pl.Series(stamps, dtype=pl.Int64), "replica": _ids(_all(forms, "dp_rank"))}
        | {name: pl.Series(_all(forms, key), dtype=pl.Int64) for name, key in counts.items()}
        | {name: pl.Series(_all(forms, f"{key}_latency_us"), dtype=pl.Float64) for name, key in _TIMES.items()},
        schema_overrides={"stamp": pl.String, "stream": pl.String},
    )
    return frame.with_columns(pl.col("lag").fill_null(0), listed=pl.lit(True))


def _ids(cells: Sequence[int | str | None]) -> pl.Series:
    return pl.Series([None if cell is None else str(cell) for cell in cells], dtype=pl.String)


_TIMES = {"draft_us": "propose_step", "target_us": "score_step", "sample_us": "speculative_sampler", "step_us": "step"}


def _adds_up(forms: Sequence[_Step], propose: Ints, accept: Ints, starts: Ints) -> Bools:
    """As `steps.check_totals`."""
    names = ("total_stream_num", "total_propose_token_num", "total_accepted_token_num")
    totals = [np.asarray([-1 if n is None else n for n in _all(forms, name)], np.int64) for name in names]
    right = np.zeros(len(forms), np.bool_)
    for some in (propose > 0, np.ones(len(propose), np.bool_)):
        sums = [np.add.reduceat(np.where(some, counts, 0), starts) for counts in (1, propose, accept)]
        right |= np.logical_and.reduce([(t < 0) | (t == n) for t, n in zip(totals, sums, strict=True)])
    return right


def _phased(frame: pl.DataFrame, drafts: Bools) -> pl.DataFrame:
    """As `steps.phase_times`; `drafts` says which steps drafted anything."""
    frame = frame.with_columns(_micros(name, 1) for name in _TIMES)
    draft, target, sample = (pl.col(name) for name in ("draft_us", "target_us", "sample_us"))
    some = pl.any_horizontal((draft > 0), (target > 0), (sample > 0)).fill_null(False)
    return frame.with_columns(
        draft_us=pl.when(some & ((draft > 0) | ~pl.Series(drafts))).then(draft),
        target_us=pl.when(target > 0).then(target),
        sample_us=pl.when(sample > 0).then(sample),
    )
