"""The last look at texts before they are rows: a name stays, a secret in the place of a name does not.

Engines take names (of models, methods, processes) from where logs have them, and a log may have anything there: a
gateway that writes its user into the task, a launcher that writes the key into the configuration. Whatever looks like
an address, a credential or a piece of a prompt is NULL. Names of canonical records (engine `generic`) are what their
writer says they are, and are not looked at; why a request ended is a word there, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tracelens.lake.schema import table

if TYPE_CHECKING:
    import polars as pl

#: Longer texts are no names.
LONGEST = 300
# Closed or nearly closed vocabularies; no engine has a word of another form in them.
_WORDS: Mapping[str, str] = {
    "method": r"^[\w.+/-]{1,64}$",
    "finish_reason": r"^[A-Za-z][A-Za-z0-9_-]{0,39}$",  # no \w: to polars that is any script, to DuckDB ASCII
    "engine_version": r"^[\w.+~: ()-]{1,100}$",
    "engine_flavour": r"^[\w.+-]{1,64}$",
}
_FREE = ("process", "replica", "model", "draft_model", "task_type")
_IP_V4 = r"(?:^|[^\d.])(?:\d{1,3}\.){3}\d{1,3}(?:$|[^\d.])"
SECRET = "|".join(
    f"(?:{pattern})"
    for pattern in (
        r"[\r\n\x00]",
        r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}",  # e-mail
        _IP_V4,
        r"(?i)\b(?:[0-9a-f]{1,4}:){3,7}(?::|[0-9a-f]{1,4})|(?:[0-9a-f]{1,4}:)+:(?:[0-9a-f]{1,4}:?)+",  # IPv6, MAC
        r"://[^/\s]*@|(?i)\b(?:https?|postgres\w*|mysql|redis|mongodb|amqp)://",
        r"(?i)\b(?:bearer|basic)\s+\S{8,}",
        r"(?i)[\w-]*(?:api_?key|token|secret|passw(?:or)?d|sig|authorization|cookie|sid|session)\w*\s*[=:]\s*\S",
        r"\b(?:sk-|hf_|gh[pousr]_|glpat-|xox[abp]-|AKIA|ASIA|AIza|org-|usr_|sess_)[\w-]{8,}",
        r"\beyJ[\w-]{6,}\.",  # JWT
        r"-----BEGIN ",
        r"\b(?:\d[ -]?){12,18}\d\b",  # cards
        r"\b[A-Z]{2}\d{2}[A-Z]{4}\d{10,}",  # bank accounts
        r"\[\s*\d+(?:\s*,\s*\d+){2,}",  # token ids
        r"<\|\w+\|>|data:\w+/\w+;|/home/[^/\s]+|/Users/[^/\s]+|/root/|:/bin/",
    )
)


#: Columns of canonical records that hold a word and no name.
GENERIC = ("finish_reason",)


def word(values: pl.Series) -> pl.Series:
    """A column of `GENERIC`, with NULL in the place of what is no word."""
    return _clean(values, _WORDS[values.name])


def word_sql(column: str) -> tuple[str, dict[str, str]]:
    """The same as an expression of DuckDB, and its parameters."""
    form, secret = f"{column}_form", f"{column}_secret"
    sql = f"case when regexp_matches({column}, ${form}) and not regexp_matches({column}, ${secret}) then {column} end"
    return sql, {form: _WORDS[column], secret: SECRET}


def cleaned(engine: str, name: str, frame: pl.DataFrame) -> pl.DataFrame:
    """Rows that an engine made for a table, with NULL in the place of what is no name."""
    if engine == "generic":
        return frame.with_columns(word(frame[c]) for c in GENERIC if c in frame.columns and c in table(name).names)
    columns = [c for c in frame.columns if c in table(name).names and (c in _WORDS or c in _FREE)]
    frame = frame.with_columns(_clean(frame[c], _WORDS.get(c)) for c in columns)
    return frame.with_columns(_clean_map(frame["config"])) if "config" in frame.columns else frame


def _clean(values: pl.Series, form: str | None) -> pl.Series:
    """Few names stand in many rows: each is looked at once."""
    import polars as pl

    if values.dtype != pl.String:
        return values
    own = values.unique().drop_nulls()
    bad = (own.str.len_chars() > LONGEST) | own.str.contains(SECRET)
    if form is not None:
        # A version such as 0.6.3.1 looks like an address; its form alone is narrow enough.
        bad = ~own.str.contains(form) if values.name == "engine_version" else bad | ~own.str.contains(form)
    found = own.filter(bad)
    if found.is_empty():
        return values
    kept = pl.when(~pl.col("v").is_in(found.implode())).then("v")
    return pl.DataFrame({"v": values}).select(kept.alias(values.name)).to_series()


def _clean_map(config: pl.Series) -> pl.Series:
    """Settings of a run without those whose value is a secret."""
    import polars as pl

    kept = pl.element().struct.field("value")
    bad = kept.str.contains(SECRET) | (kept.str.len_chars() > LONGEST)
    return config.to_frame().select(pl.col(config.name).list.filter(~bad.fill_null(False))).to_series()
