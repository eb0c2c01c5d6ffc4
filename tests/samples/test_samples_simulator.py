"""The simulator keeps the identities of the canonical tables and tells the story it is calibrated for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_generator import CLAIM, RTP_SITE, SWEEP_KS, VLLM_SITE, Simulation, Site, planted_values, realised, simulate
from sample_generator.build import RTP_RUNS, VLLM_RUNS, Run, simulation

SITES = [(VLLM_SITE, VLLM_RUNS), (RTP_SITE, RTP_RUNS)]
TASK_NAMES = {"summarise", "extraction", "writing", "chat"}


def _truth(site: Site, runs: tuple[Run, ...], name: str) -> dict[str, Any]:
    run = next(run for run in runs if run.name == name)
    return realised(simulation(site, run, 7), simulation(site, runs[0], 7))


@pytest.mark.parametrize("k", [0, 1, 3, 7])
def test_identities(k: int) -> None:
    sim = simulate(11, k, 60)
    assert (sim.accepted >= 0).all()
    assert (sim.accepted <= sim.drafted).all()
    assert (sim.emitted >= 1).all()
    assert (sim.emitted <= sim.accepted + 1).all()
    total = np.bincount(sim.request, weights=sim.emitted)
    assert (total == sim.requests.output_tokens - 1).all()  # the first token comes from prefill
    cut = sim.emitted < sim.accepted + 1
    last = np.append(sim.request[1:] != sim.request[:-1], True)
    assert not (cut & ~last).any()


@pytest.mark.parametrize("k", [0, 5])
def test_times_add_up(k: int) -> None:
    sim = simulate(11, k, 60)
    steps = sim.steps
    assert (steps.start_us[1:] == np.cumsum(steps.step_us)[:-1]).all()
    assert (steps.work_end_us <= steps.start_us + steps.step_us).all()
    assert (steps.batch == np.bincount(sim.step, minlength=len(steps)) + steps.prefills).all()
    # Decode time is the request's steps from its prefill's end to its last step's end.
    for i in range(0, len(sim.requests), 7):
        first, last = sim.requests.start_step[i], sim.requests.start_step[i] + sim.requests.rounds[i]
        assert sim.requests.decode_us[i] == steps.work_end_us[last] - steps.work_end_us[first]
    assert (steps.draft_us > 0).any() == (k > 0)


def test_same_arguments_same_run() -> None:
    a, b, c = simulate(3, 5, 40), simulate(3, 5, 40), simulate(4, 5, 40)
    assert (a.accepted == b.accepted).all()
    assert (a.steps.step_us == b.steps.step_us).all()
    assert len(a) != len(c) or (a.accepted != c.accepted).any()


def test_rounds_of_a_request_are_dependent() -> None:
    sim = simulate(5, 5, 1200, runaway=False)
    rate = np.bincount(sim.request, weights=sim.accepted) / np.bincount(sim.request, weights=sim.drafted)
    within = np.bincount(sim.request, weights=(sim.accepted / 5 - rate[sim.request]) ** 2)
    expected = within.sum() / len(sim) / sim.requests.rounds  # variance of a request's mean, were rounds independent
    assert rate[sim.requests.task == 2].var() > 1.5 * expected[sim.requests.task == 2].mean()


def test_batch_varies() -> None:
    batch = simulation(VLLM_SITE, VLLM_RUNS[1], 7).steps.batch
    assert batch.min() == 1
    assert batch.max() == 8


@pytest.mark.parametrize(("site", "runs"), SITES, ids=lambda x: getattr(x, "name", ""))
def test_the_articles_story(site: Site, runs: tuple[Run, ...]) -> None:
    alpha, rho, k = (float(CLAIM[name]) for name in ("alpha", "rho", "k"))
    assert alpha * k / (1 + rho * k) == pytest.approx(2.40)
    total = _truth(site, runs, "k5")["total"]
    assert total["draft_accept_ratio"] == pytest.approx(0.625, abs=0.015)
    assert total["rho"] == pytest.approx(0.27, abs=0.01)
    assert 1.15 <= total["verify_inflation"] <= 1.25
    assert 0.03 <= total["overhead"] <= 0.08
    assert 1.55 <= total["speedup_observed"] <= 1.65
    assert 1.55 <= planted_values(5, site)["total"]["speedup_observed"] <= 1.65


@pytest.mark.parametrize(("site", "runs"), SITES, ids=lambda x: getattr(x, "name", ""))
def test_tasks_differ(site: Site, runs: tuple[Run, ...]) -> None:
    tasks = _truth(site, runs, "k5")["by_task"]
    assert set(tasks) == TASK_NAMES
    assert tasks["extraction"]["speedup_observed"] >= 2.0
    assert 0.8 <= tasks["chat"]["speedup_observed"] <= 1.0
    assert tasks["chat"]["near_k_round_share"] > 2 * tasks["summarise"]["near_k_round_share"]
    assert all(tasks[name]["requests"] >= 30 for name in tasks)
    assert all(tasks[name]["n_eff"] >= 20 for name in tasks)


def test_runaway_and_offenders() -> None:
    sim = simulation(VLLM_SITE, VLLM_RUNS[1], 7)
    wild = int(np.flatnonzero(sim.requests.runaway)[0])
    writing = sim.requests.task == sim.requests.task[wild]
    usual = np.median(sim.requests.output_tokens[writing])
    assert 15 <= sim.requests.output_tokens[wild] / usual <= 25
    assert sim.requests.offender.sum() == 7
    bad = sim.requests.offender[sim.request]
    assert (sim.drafted[bad] - sim.accepted[bad] >= 4).mean() > 0.9


@pytest.mark.parametrize("site", [VLLM_SITE, RTP_SITE], ids=lambda site: site.name)
@pytest.mark.long
def test_best_k(site: Site) -> None:
    def best(task: str) -> int:
        return max(SWEEP_KS, key=lambda k: planted_values(k, site)["by_task"][task]["speedup_observed"])

    assert best("chat") in (2, 3)
    assert best("extraction") >= 5


def test_realised_is_what_the_arrays_say() -> None:
    sim, base = simulate(9, 3, 80), simulate(9, 0, 40)
    total = realised(sim, base)["total"]
    a, d = sim.accepted, sim.drafted
    assert total["rounds"] == len(sim) == sum(total["accepted_hist"])
    assert total["accepted"] == a.sum() == sum(j * n for j, n in enumerate(total["accepted_hist"]))
    assert total["draft_accept_ratio"] == pytest.approx(a.sum() / d.sum(), abs=1e-8)
    assert total["tau_verified"] == pytest.approx(1 + a.mean(), abs=1e-8)
    assert total["tau_committed"] == pytest.approx(sim.emitted.mean(), abs=1e-8)
    assert total["emitted"] + total["terminal_cut_tokens"] == (a + 1).sum()
    clean = ~sim.has_prefill
    t_ar = base.step_us[~base.has_prefill].mean()
    assert total["rho"] == pytest.approx(sim.draft_us[clean].mean() / 3 / t_ar, rel=1e-6)
    assert total["round_cost"] == pytest.approx(total["verify_inflation"] + 3 * total["rho"] + total["overhead"])
    parts = realised(sim, base)["by_task"].values()
    for name in ("requests", "rounds", "drafted", "accepted", "emitted", "near_k_rounds"):
        assert sum(part[name] for part in parts) == total[name]


def test_population_values_are_the_mean_of_many_runs() -> None:
    def mean(runs: list[Simulation], task: int) -> float:
        return sum(int(s.accepted[s.task == task].sum()) for s in runs) / sum(
            int(s.drafted[s.task == task].sum()) for s in runs
        )

    runs = [simulate(seed, 5, 308, runaway=False) for seed in range(20)]
    for i, task in enumerate(runs[0].tasks):
        planted = planted_values(5, VLLM_SITE)["by_task"][task.name]["draft_accept_ratio"]
        assert mean(runs, i) == pytest.approx(planted, abs=0.012)
