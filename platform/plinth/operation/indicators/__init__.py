"""Service-level indicators: good seconds of all seconds, from facts that have a time.

    timelines, samples, prices, log of assets ──▶ facts ──▶ an indicator each ──▶ tallies ──▶ any window ──▶ budget

    parameters   objectives: shares that have to be good, and what a good second is
    facts        of one run, or of the assets of a workspace, as they stood at a time
    tallies      good and all seconds of an interval; what of them lies in a window; error budgets, refused when spent
    table        every indicator by name, with its unit and its function
    attempts     job success, lineage completeness, reproducibility delta, time to fine-tune
    steps        goodput, restore time, device utilisation, cost per token
    marks        checkpoint age, checkpoint frequency, validation trend
    publications suite pass rate, ingestion lag

A platform that trains in batches has few jobs and many rank-seconds: an objective is a share of seconds, never of jobs.
An indicator is a pure function from facts to tallies. Nothing after the time of the facts is read, and the ledger after
an event depends on no later one: the past can be computed again, live and replayed alike.

Does not belong here: which runs a workspace has (`operation.objectives`), alert rules.
"""

from plinth.operation.indicators.parameters import Objectives
from plinth.operation.indicators.table import INDICATORS, of_assets, of_run
from plinth.operation.indicators.tallies import ErrorBudget, Tally, budgets, refuse_spent, value

__all__ = [
    "INDICATORS",
    "ErrorBudget",
    "Objectives",
    "Tally",
    "budgets",
    "of_assets",
    "of_run",
    "refuse_spent",
    "value",
]
