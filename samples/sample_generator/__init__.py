"""Generator of the samples: a simulator with planted truth, and writers with the engines' own formats."""

from .parameters import CLAIM, DEFAULT_SEED, OTHER_SITE, RTP_SITE, SWEEP_KS, TASKS, VLLM_SITE, Site, Task
from .simulator import Requests, Simulation, Steps, simulate
from .truth import planted_parameters, planted_values, realised

__all__ = [
    "CLAIM",
    "DEFAULT_SEED",
    "OTHER_SITE",
    "RTP_SITE",
    "SWEEP_KS",
    "TASKS",
    "VLLM_SITE",
    "Requests",
    "Simulation",
    "Site",
    "Steps",
    "Task",
    "planted_parameters",
    "planted_values",
    "realised",
    "simulate",
]
