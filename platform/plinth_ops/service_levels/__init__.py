"""Service levels: good seconds of all seconds, from facts that have a time; error budgets, and their gate.

    timelines, samples, prices, log of assets ──▶ facts ──▶ an indicator each ──▶ tallies ──▶ any window ──▶ budget

    tallies      good and total seconds of an interval; their share in a window; error budgets
    indicators   every indicator by name, with its unit and function; the budgets of all
    objectives   `objectives.yaml` of a workspace, and the indicators of all of its runs and assets
    gate         the gate `error_budget`
    asset        the asset `service_levels` with its figure and checks, every hour
    export       Parquet tables and views for DuckDB
    tile         error budgets on the index page
    command      `plinth ops sli`

A platform that trains in batches has few jobs and many rank-seconds: an objective is a share of seconds, never of jobs.
An indicator is a pure function from facts to tallies. Nothing after the time of the facts is read, and the ledger after
an event depends on no later one: the past can be computed again, live and replayed alike.
"""
