"""Dashboards of Grafana, made from one table of panels: executive, on-call, debug, data.

    table    every panel and its query, and the table as Grafana's JSON
    command  `plinth ops dashboards`
"""
