"""Alerts: one table, from which rules and routes follow, and an evaluator of our own.

    table ──┬─▶ prometheus     a rule file, the routes of Alertmanager, silences of planned stops
            └─▶ evaluate       the states that Prometheus would give, over samples in memory

    conditions  when an alert fires: PromQL, and the same computed over sampled series
    command     `plinth ops alerts`
"""
