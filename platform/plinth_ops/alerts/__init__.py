"""Alerts: one table, from which the rules and routes of Prometheus and Alertmanager follow.

    table       which alerts there are; refuses one that cannot fire in time or has no runbook
    conditions  when an alert fires, in PromQL
    prometheus  a rule file, the routes of Alertmanager, silences of planned stops
    command     `plinth ops alerts`
"""
