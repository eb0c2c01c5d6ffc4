"""The strata of a report as Prometheus metrics, and the page that a Prometheus server reads.

Names: `tracelens_` and the name of the performance model with its unit behind it: `_ratio` (of 1), `_seconds`,
`_tokens`; counts end in `_total`. The bounds of a 95 % interval are metrics of their own, `…_low` and `…_high`. Strata
only: the counts of all traffic are `sum()` of them. A figure that cannot be had has no sample.

Labels are the strata's keys, and `run` and `engine` where the lake holds one of them (and they are no key already): a
page that pools several runs does not pretend to be one of them. Which lake is watched, and how, is told once, by
`tracelens_watch_info` (an info metric: 1, to be joined with `* on (instance) group_left (lake) tracelens_watch_info`);
`job` and `instance` of a target are Prometheus' own, and tell two watches apart.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from tracelens.analysis.results import Report, Stratum, Value, label
from tracelens.errors import InputError
from tracelens.reporters import format as fmt

if TYPE_CHECKING:
    from prometheus_client import Metric

    from tracelens.analysis.watched import Watched
    from tracelens.ingest.watch import Round

_MS = 1e-3  # seconds


@dataclass(frozen=True, slots=True)
class Gauge:
    """A figure of the performance model as a metric: its name there and here, its help, and its unit in base units."""

    figure: str
    name: str
    text: str
    scale: float = 1.0


GAUGES = (
    Gauge("draft_accept_ratio", "draft_accept_ratio", "Accepted over drafted tokens (alpha), the target's own token "
          "excluded. Depends on K: see tracelens_num_speculative_tokens."),
    Gauge("token_accept_prob", "token_accept_prob_ratio", "Chance of one draft token once all before it were accepted "
          "(p), the target's own token excluded."),
    Gauge("num_speculative_tokens", "num_speculative_tokens", "Configured draft length (K), where there is one only."),
    Gauge("tau_committed", "tau_committed_tokens", "Mean tokens committed a round (tau), plain rounds and the target's "
          "own token included."),
    Gauge("rho", "rho_ratio", "Time of one draft token over one plain target step (rho)."),
    Gauge("rho_verify", "rho_verify_ratio", "Time of one draft token over the verify pass."),
    Gauge("rho_round", "rho_round_ratio", "Time of the draft phase over one plain target step."),
    Gauge("verify_inflation", "verify_inflation_ratio", "Time of the verify pass over one plain target step (v)."),
    Gauge("overhead", "overhead_ratio", "Time of a round beside draft and verify over one plain target step (o)."),
    Gauge("round_cost", "round_cost_ratio", "Time of a round over one plain target step (R)."),
    Gauge("relative_token_time", "relative_token_time_ratio", "Time of one committed token, the target's own counted, "
          "over one plain decode step (C = R/tau); below 1 speculation pays."),
    Gauge("speedup_observed", "speedup_observed_ratio", "Observed speedup: baseline TPOT over TPOT where both are "
          "known, else 1/C from the steps."),
    Gauge("speedup_claimed", "speedup_claimed_ratio", "Planned speedup, from --claim."),
    Gauge("break_even_alpha", "break_even_alpha_ratio", "The alpha at which C were 1 at this cost; above 1: never."),
    Gauge("near_k_round_share", "near_k_round_ratio", "Share of the rounds that lost (almost) the whole draft."),
    Gauge("near_k_request_share", "near_k_request_ratio", "Share of the requests in which such rounds are common."),
    Gauge("tpot_ms", "tpot_seconds", "Mean time per output token of the requests, the first token excluded.", _MS),
    Gauge("tpot_p50_ms", "tpot_p50_seconds", "Median over requests of their time per output token.", _MS),
    Gauge("tpot_p95_ms", "tpot_p95_seconds", "95th percentile over requests of their time per output token.", _MS),
    Gauge("baseline_ms", "baseline_seconds", "One plain decode step of the target: what costs are compared with.", _MS),
    Gauge("draft_ms", "draft_seconds", "Mean draft phase of a round's step.", _MS),
    Gauge("target_ms", "target_seconds", "Mean verify pass of a round's step.", _MS),
    Gauge("step_ms", "step_seconds", "Mean whole step of a round.", _MS),
)  # fmt: skip
#: What a lower bound is called: it must not be taken for the figure.
AT_LEAST = Gauge(
    "relative_token_time", "relative_token_time_at_least_ratio",
    "Lower bound of the relative token time, from the parts of a step: no record holds a whole one.",
)  # fmt: skip
COUNTERS = (
    Gauge("requests", "requests_total", "Requests whose records count rounds."),
    Gauge("rounds", "draft_rounds_total", "Request-rounds that drafted at least one token."),
    Gauge("plain_steps", "plain_steps_total", "Request-rounds without a draft."),
    Gauge("drafted", "drafted_tokens_total", "Draft tokens proposed and verified."),
    Gauge("accepted", "accepted_tokens_total", "Draft tokens accepted, the target's own token excluded."),
    Gauge("emitted", "committed_tokens_total", "Tokens committed, the target's own included."),
)


#: Labels of every stratum beside its key, in this order, and the column that would tell the same.
_CONSTANT = {"run": "run_id", "engine": "engine"}


def metrics(report: Report) -> Iterator[Metric]:
    """The strata of a report (the total where it has none) as metric families; one without a sample is left out."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    keys = label_names(report.by) if report.strata else ()
    constant = {
        name: _text(report.setting[name])
        for name, column in _CONSTANT.items()
        if name in report.setting and name not in keys and column not in report.by
    }
    names = (*constant, *keys)
    strata = zip(_label_values(report.strata), report.strata, strict=True) if keys else [((), report.total)]
    rows = tuple(((*constant.values(), *values), stratum) for values, stratum in strata)

    def family(
        kind: type[Any], name: str, text: str, samples: Sequence[tuple[Sequence[str], float]]
    ) -> Iterator[Metric]:
        if samples:
            found = kind(f"tracelens_{name}", text, labels=names)
            for labels, value in samples:
                found.add_metric(labels, value)
            yield found

    for gauge in (*GAUGES, AT_LEAST):
        yield from family(GaugeMetricFamily, gauge.name, gauge.text, _samples(rows, gauge, ""))
        for end, which in (("_low", "Lower"), ("_high", "Upper")):
            text = f"{which} bound of the 95 % interval of tracelens_{gauge.name}."
            yield from family(GaugeMetricFamily, gauge.name + end, text, _samples(rows, gauge, end))
    for counter in COUNTERS:
        yield from family(CounterMetricFamily, counter.name, counter.text, _samples(rows, counter, ""))


def _samples(
    rows: Sequence[tuple[Sequence[str], Stratum]], gauge: Gauge, end: str
) -> list[tuple[Sequence[str], float]]:
    found = []
    for labels, stratum in rows:
        value = stratum.figures.get(gauge.figure + end)
        if fmt.is_number(value) and _belongs(gauge, stratum.figures, value):
            found.append((labels, value * gauge.scale))
    return found


def _belongs(gauge: Gauge, figures: Mapping[str, Any], value: float) -> bool:
    if gauge.figure == "relative_token_time":
        return (gauge is AT_LEAST) == (figures.get("relative_token_time_basis") == "lower_bound")
    # Interval logs have rounds and no requests: their 0 means that nobody counted.
    return gauge.figure != "requests" or value > 0


def label_names(by: Sequence[str]) -> tuple[str, ...]:
    """Names of labels for the columns of a grouping: what Prometheus does not allow is `_`, and none is there twice."""
    names: list[str] = []
    for column in by:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", column)
        name = f"by_{name.lstrip('_')}" if not re.match(r"[a-zA-Z]|_[^_]", name) else name
        number = 2
        unique = name
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return tuple(names)


def _label_values(strata: Sequence[Stratum]) -> list[tuple[str, ...]]:
    """Values of the labels; two strata that read the same (NULL and its sign) are told apart, as a page must be."""
    taken: set[tuple[str, ...]] = set()
    found: list[tuple[str, ...]] = []
    for stratum in strata:
        texts = tuple(_text(value) for value in stratum.key.values())
        unique, number = texts, 2
        while unique in taken:
            unique, number = (*texts[:-1], f"{texts[-1]} ({number})"), number + 1
        taken.add(unique)
        found.append(unique)
    return found


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # An empty label is none at all to Prometheus; controls would reach whoever looks at it.
    return fmt.visible(label(value)) or '""'


def _info(report: Report | None, lake: str) -> Metric:
    """What is watched, and how its figures are made; every label is there always, empty (as none) where unknown."""
    from prometheus_client.core import InfoMetricFamily

    setting = {} if report is None else report.setting
    selection = {} if report is None else report.selection
    told = {
        "lake": lake,
        **{name: setting.get(name) for name in ("run", "engine", "model")},
        "by": "" if report is None else ",".join(report.by),
        **{name: selection.get(name) for name in ("where", "baseline")},
    }
    text = "What is watched: the lake, its run, engine and model where it holds one, the grouping, filter and baseline."
    values = {name: "" if value is None else fmt.visible(value) for name, value in told.items()}
    return InfoMetricFamily("tracelens_watch", text, value=values)


class Exposition:
    """What the page says: the metrics of the last look; a reader gets all of one look. `lake` is the lake's name."""

    def __init__(self, lake: str = "") -> None:
        self._lake = lake
        self._page: tuple[Metric, ...] = ()

    def show(self, found: Round, seen: Watched) -> None:
        """Take what a look has found."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        fresh = seen.fresh
        page: list[Metric] = [_info(seen.report, self._lake)]
        page += [] if seen.report is None else metrics(seen.report)
        page.append(
            GaugeMetricFamily("tracelens_last_look_timestamp_seconds", "When the files were looked at.", time.time())
        )
        if fresh.last_record is not None:
            text = "Time of the last record in the lake."
            stamp = fresh.last_record.replace(tzinfo=UTC).timestamp()
            page.append(GaugeMetricFamily("tracelens_last_record_timestamp_seconds", text, stamp))
        page.append(
            CounterMetricFamily("tracelens_rejected_records_total", "Records that were refused.", fresh.rejects)
        )
        text = "Sources that have changed and are not read yet."
        page.append(GaugeMetricFamily("tracelens_waiting_sources", text, len(found.held)))
        self._page = tuple(page)

    def collect(self) -> Iterator[Metric]:
        """The metrics, for the registry of prometheus_client."""
        yield from self._page


@contextmanager
def served(host: str, port: int, lake: str = "") -> Iterator[tuple[Exposition, str]]:
    """Serve an exposition until the end of the block; its address comes beside it (port 0: any that is free).

    `lake` is what the lake is called on the page.

    Raises:
        InputError: the address is taken, not ours or none; prometheus_client is not installed.
    """
    from tracelens.reporters.serving import PageServer

    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError as error:
        raise InputError("--prometheus needs the package prometheus_client: pip install prometheus-client") from error
    registry = CollectorRegistry()
    page = Exposition(lake)
    registry.register(page)
    try:
        server = PageServer(host, port, make_wsgi_app(registry))
    except (OSError, OverflowError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"--prometheus: can't serve on {fmt.middle(host, 60)} port {port}: {reason}; "
            "give another port, or another --prometheus-host"
        ) from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        name = f"[{host}]" if ":" in host else host
        yield page, f"http://{name}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
