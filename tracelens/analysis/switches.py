"""What to switch on in an engine so that its logs hold a quantity: only what this version of tracelens reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tracelens.analysis.engine_switches import CANONICAL, SWITCH
from tracelens.engines.versions import Build, at_first, named, newer_era, upgrade

_BASELINE = (
    "run the same traffic without speculation and ingest it with `--role baseline`, or name one: `--baseline RUN|MS`"
)
_MATCHED = "ingest a baseline of every engine and model, or group by engine and model"
_ALIKE = "profile some steps of a run without speculation, too, and ingest that trace with `--role baseline`"
_SINGLE = (
    "ask of days that are not rolled up (`--since`), or bring the single rounds of a log back: `tracelens ingest "
    "--replace LOG`"
)
_DRAFTER = "look into the engine's start-up log: is the drafter loaded, and does it propose on this traffic?"
_LABELS = "name it by `--labels FILE`, `--set task_type=…` or rules in tracelens.toml at ingest"

# What a canonical record must hold, by need: the kind of record, and its fields in the order of the schema.
_FIELDS: Mapping[str, tuple[str, str]] = {
    "counts": ("round", '"drafted":…,"accepted":…,"emitted":…'),
    "drafted": ("round", '"drafted":…'),
    "draft_lengths": ("round", '"drafted":…,"accepted":…'),
    "rounds": ("round", '"drafted":…,"accepted":…'),
    "plain_steps": ("round", '"drafted":0,"accepted":0,"emitted":1'),
    "emitted": ("round", '"emitted":…'),
    "requests": ("round", '"request_id":…'),
    "single_rounds": ("round", '"request_id":…,"round_index":…,"drafted":…,"accepted":…'),
    "step_share": ("round", '"step_id":…'),
    "length": ("round", '"num_speculative_tokens":…'),
    "class_of_times": ("round", '"task_type":…,"step_ms":…'),
    "temperature": ("request", '"request_id":…,"temperature":…'),
    "tpot": ("request", '"request_id":…,"output_tokens":…,"decode_ms":…'),
    "draft_time": ("round", '"draft_ms":…'),
    "target_time": ("round", '"target_ms":…'),
    "step_time": ("round", '"step_ms":…'),
    "sample_time": ("round", '"sample_ms":…'),
    "rollback_time": ("round", '"rollback_ms":…'),
    "repack_time": ("round", '"repack_ms":…'),
    "emit_lag": ("round", '"emit_lag_ms":…'),
}
_OF_WHAT = {
    "plain_steps": "a plain decode step",
    "temperature": "a request (or a round)",
    "tpot": "a finished request",
}


def switch_on(
    needs: str | Sequence[str],
    engines: Collection[str],
    canonical: Collection[str] = (),
    builds: Mapping[str, Build] | None = None,
) -> str:
    """What gives a quantity, or several that one reason tells of, in these engines.

    Args:
        needs: one quantity or several that have one answer in every engine that is not canonical.
        engines: all engines of the selection; those with one remedy are named together.
        canonical: those of them whose logs are canonical JSON lines already: for them, the fields to print.
        builds: the version of each engine, where one is known: nothing is named that it does not have.
    """
    needs = [needs] if isinstance(needs, str) else needs
    need = needs[0]
    if need in ("baseline", "baseline_tpot"):
        return _BASELINE
    if need in ("matched", "matched_tpot"):
        return _MATCHED
    if need in ("phases_alike", "steps_alike"):
        return _ALIKE
    if need == "task_type":
        return _LABELS
    if need == "single_requests":
        return _SINGLE
    needs = ["drafted" if need == "timed_drafts" else need for need in needs]
    need = needs[0]
    if need in ("nothing_drafted", "some_accepted"):
        return _DRAFTER
    texts: dict[str, list[str]] = {}
    for engine in sorted(engines):
        text = _printed(needs) if engine in canonical else _of_engine(engine, need, (builds or {}).get(engine))
        texts.setdefault(text, []).append(engine)
    if len(texts) <= 1:
        return next(iter(texts), CANONICAL)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())


def _of_engine(engine: str, need: str, build: Build | None) -> str:
    """What an engine has for a quantity in this version, or else the nearest version that has something."""
    known = SWITCH.get(engine, {}).get(need, CANONICAL)
    if isinstance(known, str) or build is None:
        return str(known)
    way, ranges = known.way(build), [way.range for way in known.ways]
    if way is not None:
        return way.text
    other, later = newer_era(ranges, build), upgrade(ranges, build)
    if other is not None:
        then, era = known.at(replace(build, era=other.era)), other.era.upper()
        return f"not by the engine before {era} (here {build.version}); run {era}, then: {then}"
    if later is not None:
        then = known.at(at_first(engine, later))
        return (
            f"not before {later.first} (here {build.version}); upgrade to {named(later.first)} or later, then: {then}"
        )
    return f"not in {build.version}; {CANONICAL}"


def _printed(needs: Sequence[str]) -> str:
    """The canonical record that holds these quantities."""
    kinds = [_FIELDS[need] for need in needs if need in _FIELDS]
    if not kinds:
        return CANONICAL
    kind, fields = kinds[0][0], ",".join(fields for _, fields in kinds)
    return f'print {{"record":"{kind}",…,{fields}}} {_OF_WHAT.get(needs[0], f"a {kind}")}'
