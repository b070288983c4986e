"""Alerts: one table, from which rules, routes and runbooks follow, and an evaluator of our own.

    table ──┬─▶ rules          a rule file of Prometheus
            ├─▶ alertmanager   its routes by owner and severity, silences of planned runs
            └─▶ evaluate       the states that Prometheus would give, over `series` in memory

    conditions  what an alert waits for: PromQL, and the same computed
    alert       the record of an alert; the checks of a table
    series      sampled series, read as Prometheus reads them
"""
