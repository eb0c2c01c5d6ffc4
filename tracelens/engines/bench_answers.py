"""Answer files of Spec-Bench and of the EAGLE repository: one question a line, its turns one request each.

Both come from FastChat's `gen_model_answer`: `choices[{index, turns, …, new_tokens, wall_time}]` of `model_id`, lists
by turn. What stands in `turns` is text that a model wrote, and is never looked at.

* Spec-Bench has the `category` of the question (a task type), `decoding_steps` by turn and `accept_lengths`, the tokens
  that each round appended, flat over the turns. The target's own token is among them, so a round accepted one less.
  Some methods trim the last round at the end of the text. Older scripts wrote EAGLE's `idxs` instead of the steps.
* EAGLE has `idxs`, the index of the last round of a turn, so one less than its rounds; a round appends its accepted
  drafts and one token. Its alpha scripts draft a chain and add `alpha` and `alpha_num`, the drafts accepted and tried
  by position: a position is tried where the one before it was accepted. Where they fit the rounds of the last turn, or
  of all turns, they are the accepted lengths. In those of a tree other branches are counted, and they fit nothing.

Else neither logs how many tokens were drafted. `wall_time` is the whole call with its prefill: no time a token comes
from it. A file of a baseline appends one token a round; it is taken for one where its name says so too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import polars as pl

from tracelens.engines import rows
from tracelens.engines.base import Context, JsonRecord, Parsed, Reject, Surface, Tables
from tracelens.engines.units import INT32_MAX, LONGEST_DRAFT, BrokenError, counts, duration, finite, text
from tracelens.engines.vllm.startup import leaf

Object = Mapping[str, Any]
SCHEMA: Mapping[str, Any] = {
    **rows.PLACE, "model_id": pl.String, "task_type": pl.String, "request_id": pl.String, "end_s": pl.Float64,
    "output_tokens": pl.Int64, "rounds": pl.Int64, "accepted": pl.Int64, "emitted": pl.Int64,
    "accepted_hist": pl.List(pl.Int64), "e2e_us": pl.Int64, "num_speculative_tokens": pl.Int32, "drafted": pl.Int64,
}  # fmt: skip
_TEMPERATURE = re.compile(r"-temp(?:erature)?-(\d{1,3}(?:\.\d{1,6})?)$")
# What a name calls a drafter (Spec-Bench's eval.sh), and what it calls its absence.
_METHOD = re.compile(
    r"(?:^|[-_])(sps|medusa|eagle[23]?|ea|hydra|lade|lookahead|pld|rest|recycling|samd?|space|jakiro)(?:$|[-_])"
)
_BASELINE = re.compile(r"(?:^|[-_])(?:vanilla|baseline|base|naive)(?:$|[-_])")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][\w.+=-]{0,100}")
_EPOCH_S = (1e9, 4e9)


def holds(value: Object, keys: Sequence[str]) -> bool:
    """Whether a record is an answer whose choices have one of the keys."""
    choices = value.get("choices")
    if "question_id" not in value or "model_id" not in value or not isinstance(choices, list):
        return False
    return any(isinstance(c, Mapping) and "new_tokens" in c and any(k in c for k in keys) for c in choices)


def parse(records: Sequence[JsonRecord], surface: str, keys: Sequence[str], others: Sequence[str] = ()) -> Parsed:
    """Take answers whose choices have one of `keys` and none of `others`."""
    parsed = Parsed()
    found: list[dict[str, Any]] = []
    for record in records:
        if not holds(record.value, keys) or holds(record.value, others):
            continue
        parsed.claimed += 1
        try:
            found += [row | rows.place(record) for row in _turns(record.value)]
        except BrokenError as error:
            parsed.rejects.append(Reject(record.line, str(error), surface, record.offset))
    parsed.add(surface, rows.frame_of(found, SCHEMA))
    return parsed


def _turns(value: Object) -> Iterator[dict[str, Any]]:
    """The turns of an answer.

    Raises:
        BrokenError: a figure that is none, or lists that contradict each other.
    """
    category = value.get("category")
    told: dict[str, Any] = {
        "model_id": text(value["model_id"], "model_id")[:200],
        "task_type": text(category, "category")[:64] if isinstance(category, str) and category else None,
    }
    stamp = value.get("tstamp")
    if stamp is not None and _EPOCH_S[0] < finite(stamp, "tstamp") < _EPOCH_S[1]:
        told["end_s"] = float(stamp)
    question = text(value["question_id"], "question_id", is_id=True)[:100]
    for number, choice in enumerate(value["choices"]):
        if isinstance(choice, Mapping):
            for turn, row in enumerate(_choice(choice)):
                yield told | row | {"request_id": f"{question}.{number}.{turn}"}


def _choice(choice: Object) -> Iterator[dict[str, Any]]:
    tokens = counts(choice.get("new_tokens"), "new_tokens")
    if max(tokens, default=0) > INT32_MAX:
        raise BrokenError("new_tokens: out of range")
    seconds = choice.get("wall_time")
    if not isinstance(seconds, list) or len(seconds) != len(tokens):
        raise BrokenError("wall_time and new_tokens of different lengths")
    times = [int(duration(s, "wall_time", 1_000_000)) for s in seconds]
    if sum(times) > rows.MOST:
        raise BrokenError("wall_time: out of range")
    appended = choice.get("accept_lengths")
    if appended is None:
        steps = _steps(choice, len(tokens))
        by_position, every = _chain(choice, tokens, steps)
        if every:
            tokens, steps, times = [sum(tokens)], [sum(steps)], [sum(times)]
        found: list[dict[str, Any]] = []
        for out, passes, time in zip(tokens, steps, times, strict=True):
            if not passes <= out:
                raise BrokenError("new_tokens >= rounds does not hold")
            found.append(
                {"output_tokens": out, "rounds": passes, "accepted": out - passes, "emitted": out, "e2e_us": time}
            )
        if found:
            found[-1] |= by_position
        yield from found
        return
    lengths = counts(appended, "accept_lengths")
    if max(lengths, default=0) > LONGEST_DRAFT + 1:
        raise BrokenError("accept_lengths: longer than any draft")
    parts = _cut(lengths, choice, tokens)
    if parts is None:  # the turns together: nothing tells where one ends
        parts, tokens, times = [lengths], [sum(tokens)], [sum(times)]
    for part, out, time in zip(parts, tokens, times, strict=True):
        accepted = [max(n - 1, 0) for n in part]
        by_length = Counter(accepted)
        hist = [by_length[j] for j in range(max(accepted, default=-1) + 1)]
        yield {
            "output_tokens": out, "rounds": len(part), "accepted": sum(accepted), "emitted": sum(part),
            "accepted_hist": hist or None, "e2e_us": time,
        }  # fmt: skip


def _steps(choice: Object, turns: int) -> list[int]:
    """Rounds by turn."""
    if choice.get("decoding_steps") is not None:
        steps = counts(choice["decoding_steps"], "decoding_steps")
    else:
        steps = [i + 1 for i in counts(choice.get("idxs"), "idxs")]
    if len(steps) != turns:
        raise BrokenError("rounds and new_tokens of different lengths")
    return steps


def _chain(choice: Object, tokens: list[int], steps: list[int]) -> tuple[dict[str, Any], bool]:
    """Accepted lengths from `alpha` and `alpha_num`, and whether they are of all turns together, not of the last one.

    Raises:
        BrokenError: a list that holds no counts.
    """
    if choice.get("alpha") is None or choice.get("alpha_num") is None or not steps:
        return {}, False
    accepted, tried = counts(choice["alpha"], "alpha"), counts(choice["alpha_num"], "alpha_num")
    if len(accepted) != len(tried):
        raise BrokenError("alpha and alpha_num of different lengths")
    # The lists may be longer than the chain: nothing was tried behind a position that was accepted.
    end = next((i for i in range(1, len(tried)) if tried[i] == 0 < accepted[i - 1] and not any(tried[i:])), len(tried))
    accepted, tried = accepted[:end], tried[:end]
    if not tried or tried[1:] != accepted[:-1] or any(a > n for a, n in zip(accepted, tried, strict=True)):
        return {}, False
    for every, out, passes in ((False, tokens[-1], steps[-1]), (True, sum(tokens), sum(steps))):
        # Tokens behind the end of a turn were verified and cut.
        if passes == tried[0] > 0 and out <= passes + sum(accepted) and len(tried) <= LONGEST_DRAFT:
            hist = [a - b for a, b in pairwise([*tried, accepted[-1], 0])]
            return {
                "accepted": sum(accepted), "accepted_hist": hist, "drafted": passes * len(tried),
                "num_speculative_tokens": len(tried),
            }, every  # fmt: skip
    return {}, False


def _cut(lengths: list[int], choice: Object, tokens: list[int]) -> list[list[int]] | None:
    """The appended tokens of each turn, by the rounds of each, else by its tokens."""
    if len(tokens) == 1:
        return [lengths]
    said = [counts(choice[key], key) for key in ("decoding_steps", "idxs") if choice.get(key) is not None]
    for sizes in (*said, *([i + 1 for i in s] for s in said)):
        if len(sizes) == len(tokens) and sum(sizes) == len(lengths):
            return [lengths[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]
    ends = {total: i for i, total in enumerate(accumulate(lengths), 1)}
    marks = [0, *(ends.get(total, -1) for total in accumulate(tokens))]
    if -1 in marks or marks[-1] != len(lengths):
        return None
    return [lengths[a:b] for a, b in pairwise(marks)]


def assemble(frames: Mapping[str, Sequence[pl.DataFrame]], surface: Surface, context: Context) -> Tables:
    """Requests, and a run each model id."""
    found = rows.whole(frames, [surface], context)
    if not found:
        return Tables()
    answers = found[surface.name].with_columns(run_key=pl.col("model_id").rank("dense").cast(pl.Int64))
    plain = (pl.col("accepted") == 0).all().over("run_key")
    named = pl.col("model_id").str.to_lowercase().str.contains(_BASELINE.pattern)
    answers = answers.with_columns(baseline=plain & named)
    runs = [_run(*row) for row in answers.select("run_key", "model_id", "baseline").unique().sort("run_key").rows()]
    end = pl.from_epoch((pl.col("end_s") * 1e6).round().cast(pl.Int64), time_unit="us")
    none = pl.when("baseline").then(0)
    requests = answers.with_columns(
        # A baseline's rounds are plain steps.
        iterations="rounds",
        rounds=pl.coalesce(none, "rounds"),
        drafted=pl.coalesce(none, "drafted"),
        num_speculative_tokens=pl.when(~pl.col("baseline")).then("num_speculative_tokens"),
        accepted_hist=pl.when(~pl.col("baseline")).then("accepted_hist"),
        counts_basis=pl.lit("derived"),
        temperature=pl.col("model_id").str.extract(_TEMPERATURE.pattern, 1).cast(pl.Float64, strict=False),
        source_line="line",
        surface=pl.lit(surface.name),
        ts_end=pl.coalesce(end, "ts"),
        ts_basis=pl.when(pl.col("end_s").is_not_null()).then(pl.lit("absolute")).otherwise("ts_basis"),
    )
    drop = ("line", "offset", "stamp", "inner", "stream", "model_id", "end_s", "ts", "baseline")
    kinds = dict.fromkeys(("run_id", "model", "method", "role"), pl.String())
    about = pl.DataFrame(runs, schema={"run_key": pl.Int64(), **kinds}).with_columns(
        model=leaf(pl.col("model")), is_result=True
    )
    return Tables(requests=requests.drop(drop), runs=about)


def _run(key: int, model_id: str, baseline: bool) -> dict[str, Any]:
    word = _METHOD.search(model_id.lower())
    plain = _PLAIN_NAME.fullmatch(model_id) is not None
    return {
        "run_key": key,
        "run_id": f"bench-{model_id}" if plain else None,
        "model": model_id,
        "method": None if word is None or baseline else word[1],
        "role": "baseline" if baseline else "speculative",
    }
