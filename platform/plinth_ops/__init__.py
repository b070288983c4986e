"""The ring: operating a workspace that others rely on. Found through entry points; nothing of the core imports it.

metrics/        the table of metrics and their exporter
alerts/         the table of alerts: rules and routes of Prometheus, an evaluator
dashboards      Grafana's JSON from a table of panels
service_levels/ indicators and error budgets: the asset, the figure, the export for DuckDB
checklists/     checks with evidence, remedy and owner: preproduction, readiness, incident, security
gamedays/       fault injection in a sandbox, with a verdict
backup/         back up what cannot be rebuilt, and restore it
retention/      what must be kept; deletion of unreferenced objects
spending        cost by run, team and bucket; `plinth ops cost`
reviews/        the page of a week or month; the postmortem of an incident; `plinth ops incident`
"""
