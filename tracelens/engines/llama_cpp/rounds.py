"""Round lines to rounds: twins of two log levels, replays, what was emitted, and times from the stamps."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracelens.engines.base import Reject
from tracelens.engines.llama_cpp.surfaces import ROUND

# What goes on in a process from one idle moment to the next.
_SPAN = ("run_key", "stream", "child", "idle")
# A task is known by its number, within a process; its number may come again in another one that no start line tells of.
_TASK = (*_SPAN, "task")


def of_tasks(events: pl.DataFrame, requests: pl.DataFrame, rejects: list[Reject]) -> pl.DataFrame:
    """The rounds of one source with the request they belong to, each round once.

    Args:
        events: round lines and draft events (`drafting` true), in file order, with `run_key` and `idle`.
        requests: what `blocks.requests` gave.
        rejects: gets restores whose counts no line tells.

    Returns:
        `gid` (one a request), `drafted`, `accepted`, `emitted` (before cuts), `is_replay`, `clock`, `n_tokens`
        (context before the round, where logged), `draft_us`, `target_us`, `request` (row in `requests`, or null).
    """
    ends = requests.with_row_index("request").filter(pl.col("task").is_not_null())
    ends = ends.select(*_TASK, "slot", "line", pl.col("request").cast(pl.Int64), end=pl.lit(True))
    both = pl.concat([events.with_columns(end=pl.lit(False)), ends], how="diagonal").sort("line", maintain_order=True)
    both = _with_belated(both.with_columns(pl.col("stream", "child").fill_null("")))
    # Everything else of a task stands above the block that ends it; below, the number is another process's.
    own = (pl.col("end") | pl.col("_belated")).cast(pl.Int64)
    ended = pl.col("end").cast(pl.Int64).cum_sum().over(_TASK) - own
    both = both.with_columns(_part=ended).with_columns(gid=pl.struct(*_TASK, "_part").rank("dense").cast(pl.Int64))
    both = both.with_columns(request=pl.col("request").max().over("gid"))
    rows = _without_twins(both.filter(~pl.col("end") & ~pl.col("drafting")))
    rows = _with_drafts(rows, both.filter(pl.col("drafting")))
    return _with_replays(rows, rejects)


def _with_belated(both: pl.DataFrame) -> pl.DataFrame:
    """Add `_belated`: a debug line right below the end of a request in its slot, whose last round it tells.

    Builds up to early 2026 left the loop over a round's tokens with `break` when the request ended (b11434 returns),
    so the line was still written: with the task's number, or with -1 since a released slot has no task. In between no
    draft was begun in the slot: debug would tell.
    """
    slot = [*_SPAN, "slot"]
    ended = pl.col("task").shift(1).over(slot)
    ours = (pl.col("task") == -1) | (pl.col("task") == ended)
    late = (pl.col("kind") == "debug") & pl.col("end").shift(1).over(slot) & ours
    both = both.with_columns(_belated=late.fill_null(False))
    return both.with_columns(task=pl.when("_belated").then(ended).otherwise("task"))


def _without_twins(rows: pl.DataFrame) -> pl.DataFrame:
    """One row a round, the first of its lines: LLAMA_TRACE's, `add accepted tokens`, and debug's `new n_tokens`.

    The last one adds the context after the round. Of a replay it leaves out the token that was accepted before
    (since llama.cpp#26320, 2026-08), while the other two still have it.
    """
    kind = pl.col("kind")
    before, after = kind.shift(1).over("gid"), kind.shift(-1).over("gid")
    fewer = pl.col("accepted").shift(1).over("gid") - pl.col("accepted")
    alike = (pl.col("drafted") == pl.col("drafted").shift(1).over("gid")) & (
        (fewer == 0) | ((kind == "debug") & (fewer == 1))
    )
    follows = ((kind == "added") & (before == "trace")) | ((kind == "debug") & before.is_in(["trace", "added"]))
    restore = (kind == "restoring") & ((before == "restore") | (after == "restore"))
    rows = rows.with_columns(_twin=((follows & alike) | restore).fill_null(False))
    rows = rows.with_columns(_round=(~pl.col("_twin")).cast(pl.Int64).cum_sum().over("gid"))
    later = pl.col("n_tokens").max().over("gid", "_round")
    return rows.with_columns(n_tokens=pl.coalesce("n_tokens", later)).filter(~pl.col("_twin")).drop("_twin", "_round")


def _with_drafts(rows: pl.DataFrame, drafts: pl.DataFrame) -> pl.DataFrame:
    """Times of drafting and verifying, from debug: the draft that ended after the round before and above this one.

    The times are the whole step's: every request of a batch waits for all drafts, and for the one verify pass.
    """
    begun = pl.when(pl.col("kind") == "begin").then("clock").forward_fill().over("gid")
    drafts = drafts.with_columns(_begun=begun).filter(pl.col("kind") == "end")
    drafts = drafts.select("gid", "_begun", _line="line", _ended="clock", _context="n_tokens", _drafted="drafted")
    previous = pl.col("line").shift(1).over("gid").fill_null(-1)
    rows = rows.with_columns(_previous=previous).sort("line", maintain_order=True)
    rows = rows.join_asof(
        drafts, left_on="line", right_on="_line", by="gid", strategy="backward", check_sortedness=False
    )
    ours = pl.col("_line") > pl.col("_previous")
    spans = {"draft_us": pl.col("_ended") - pl.col("_begun"), "target_us": pl.col("clock") - pl.col("_ended")}
    # The debug line counts the context after the round: this round's tokens off.
    before = pl.when(pl.col("kind") == "plain").then("n_tokens").otherwise(pl.col("n_tokens") - pl.col("accepted") - 1)
    return rows.with_columns(
        **{name: pl.when(ours & (span >= 0)).then(span) for name, span in spans.items()},
        n_tokens=pl.coalesce(pl.when(ours).then("_context"), pl.when(before >= 0).then(before)),
        seen=ours.fill_null(False),
        _drafted=pl.when(ours).then("_drafted"),
    )


def _with_replays(rows: pl.DataFrame, rejects: list[Reject]) -> pl.DataFrame:
    """Replays after a rejection that the context could not roll back (recurrent and SWA models).

    The server restores a checkpoint, takes the accepted drafts and the target's own token as the next draft and
    verifies them again: one more comes back accepted than was counted, and one token is new. Until llama.cpp#26320
    (2026-08) the request's own count had that token as accepted.
    """
    restored = pl.col("kind").is_in(["restore", "restoring"])
    silent = pl.col("kind") == "restoring"  # debug alone: the counts are those of the draft and of its replay
    replayed = pl.col("drafted").shift(-1).over("gid") - 1
    rows = rows.with_columns(
        accepted=pl.when(silent).then(replayed).otherwise("accepted"),
        drafted=pl.when(silent).then("_drafted").otherwise("drafted"),
    )
    lost = silent & (
        pl.col("accepted").is_null()
        | pl.col("drafted").is_null()
        | (pl.col("accepted") > pl.col("drafted"))
        | (pl.col("accepted") < 0)
    )
    for line, offset in rows.filter(lost).select("line", "offset").iter_rows():
        rejects.append(Reject(line, "restored checkpoint without its draft or its replay", ROUND, offset))
    before = restored.shift(1).over("gid").fill_null(False)
    again = pl.col("accepted").shift(1).over("gid")
    replay = before & (pl.col("drafted") > 0) & ((pl.col("drafted") == again + 1) | (pl.col("drafted") == again))
    rows = rows.with_columns(is_replay=replay.fill_null(False), restored=restored).filter(~lost)
    fresh = (
        pl.when(pl.col("is_replay")).then(1).when(pl.col("kind") == "plain").then(1).otherwise(pl.col("accepted") + 1)
    )
    return rows.with_columns(emitted=fresh.cast(pl.Int64))


def canonical(rows: pl.DataFrame, requests: pl.DataFrame, slots: int, launches: pl.DataFrame) -> pl.DataFrame:
    """Canonical rounds; what a request emitted in all settles cuts, unlogged plain steps and the context.

    Only LLAMA_TRACE prints rounds with a draft, and plain steps nowhere. Where more than one is missing from a request,
    gaps between its lines are no rounds' times and its context is not known. (One is the last step before max_tokens,
    which has no room for a draft.)
    """
    told = requests.with_row_index("request").select(
        pl.col("request").cast(pl.Int64), "request_id", "prompt_tokens", "temperature", "top_p", _total="output_tokens"
    )
    rows = rows.join(told, on="request", how="left", maintain_order="left")
    total = (pl.col("_total") - 1).clip(0)
    sums = pl.col("emitted").sum().over("gid")
    rows = rows.with_columns(_excess=(sums - total).clip(0).fill_null(0), _missing=(total - sums).clip(0))
    # Cut from the end, as in `emitted_by_round`: stop string, EOS or max_tokens.
    behind = pl.col("emitted").cum_sum(reverse=True).over("gid") - pl.col("emitted")
    cut = pl.min_horizontal((pl.col("_excess") - behind).clip(0), "emitted")
    whole = (pl.col("_missing") <= 1).fill_null(False) | pl.col("seen").any().over("gid")
    step = pl.col("clock") - pl.col("clock").shift(1).over("gid")
    so_far = pl.col("emitted").cum_sum().over("gid") - pl.col("emitted")
    rows = rows.with_columns(
        step_us=pl.when(whole & (step >= 0)).then(step),
        context_len=pl.coalesce("n_tokens", pl.when(whole).then(pl.col("prompt_tokens") + so_far)),
    ).with_columns(emitted=pl.col("emitted") - cut)
    rows = _steps(_prefills(rows, launches, slots), slots)
    return rows.select(
        "line", "ts", "ts_basis", "run_key", "child", "drafted", "accepted", "emitted", "draft_us", "target_us",
        "step_us", "is_replay", "has_prefill", "step_id", "step_share", "batch_size", "context_len", "temperature",
        "top_p",
        request_id=pl.coalesce("request_id", pl.col("task").cast(pl.String)),
        round_index=pl.int_range(pl.len()).over("gid"),
        # The replay is nothing but repair: the tokens were known.
        rollback_us=pl.when("is_replay").then("step_us"),
        timing_basis=pl.when(pl.col("draft_us").is_not_null()).then(pl.lit("host")).when(pl.col("step_us").is_not_null()).then(pl.lit("derived")),
    )  # fmt: skip


def _prefills(rows: pl.DataFrame, launches: pl.DataFrame, slots: int) -> pl.DataFrame:
    """`has_prefill` of rounds in whose step another task was launched: its prompt went through the same batch."""
    if slots <= 1 or not launches.height:
        return rows.with_columns(has_prefill=pl.lit(None, pl.Boolean))
    key = ("run_key", "stream", "child")
    begun = (
        launches.with_columns(pl.col("stream", "child").fill_null(""))
        .sort("line")
        .select(*key, _at="line", _n=pl.int_range(1, pl.len() + 1))
    )
    rows = rows.sort("line", maintain_order=True)
    rows = rows.join_asof(
        begun, left_on="line", right_on="_at", by=list(key), strategy="backward", check_sortedness=False
    )
    count = pl.col("_n").fill_null(0)
    return rows.with_columns(has_prefill=pl.when(count > count.shift(1).over("gid")).then(True))


def _steps(rows: pl.DataFrame, slots: int) -> pl.DataFrame:
    """Which rounds are of one batch: with several slots, lines whose slot numbers rise, as they are printed.

    No batch goes on over a moment in which no task was under way.

    `batch_size` is then the number of rounds in the step: slots without a draft print nothing, and are not counted.
    """
    if slots <= 1:
        return rows.with_columns(
            step_id=pl.col("line").cast(pl.String), step_share=pl.lit(1.0), batch_size=pl.lit(1, pl.Int32)
        )
    key = list(_SPAN)
    rows = rows.sort("line", maintain_order=True)
    opens = (pl.col("slot") <= pl.col("slot").shift(1).over(key)).fill_null(True)
    rows = rows.with_columns(_step=opens.cast(pl.Int64).cum_sum().over(key))
    step = [*key, "_step"]
    size = pl.len().over(step).cast(pl.Int32)
    return rows.with_columns(
        step_id=pl.col("line").first().over(step).cast(pl.String), step_share=1.0 / size, batch_size=size
    )


def by_request(rows: pl.DataFrame) -> pl.DataFrame:
    """What the round lines of each request add up to: `request`, `rounds`, `drafted`, `accepted`, `accepted_hist`."""
    counted = rows.filter(pl.col("request").is_not_null() & ~pl.col("is_replay") & (pl.col("drafted") > 0))
    sums = counted.group_by("request", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("rounds"),
        pl.col("drafted", "accepted").sum(),
        _most=pl.col("drafted").max(),
        _each="accepted",
    )
    hists = [_histogram(each, most) for each, most in sums.select("_each", "_most").iter_rows()]
    return sums.select(
        "request", "rounds", "drafted", "accepted", accepted_hist=pl.Series(hists, dtype=pl.List(pl.Int64))
    )


def _histogram(accepted: Sequence[int], most: int) -> list[int] | None:
    if most > 4096:  # no real draft is so long: a hostile count would only cost memory
        return None
    hist = [0] * (most + 1)
    for count in accepted:
        hist[count] += 1
    return hist
