"""Dashboards of Grafana, made from one table of panels: executive, on-call, debug, data.

    table    every panel: what it shows, and its query
    grafana  the table as Grafana's JSON
"""
