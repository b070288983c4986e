"""Commands of whoever keeps the platform running.

metrics        `plinth ops metrics list | serve | write`
alerts         `plinth ops alerts list | rules | routes | silence`
dashboards     `plinth ops dashboards`: Grafana's JSON
retrospective  `plinth ops retrospective`: the page of a week or month
"""
