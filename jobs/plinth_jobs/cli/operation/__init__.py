"""Commands of whoever keeps the platform running.

metrics        `plinth metrics list | serve | write`
alerts         `plinth alerts list | rules | routes | silence`
dashboards     `plinth dashboards`: Grafana's JSON
retrospective  `plinth retrospective`: the page of a week or month
"""
