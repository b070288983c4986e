"""Operations of a workspace in production, loaded through entry points. No core module imports this package.

    metrics/        the metrics table and the exporter
    alerts/         the alert table; Prometheus rules and Alertmanager routes
    dashboards      Grafana dashboards as JSON, from a table of panels
    service_levels/ indicators and error budgets: the asset, the chart, the export to DuckDB
    checklists/     checks with evidence, remedy and owner: preproduction, readiness, incident, security
    gamedays/       fault injection in a sandbox, with a verdict
    backup/         back up what cannot be rebuilt, and restore it
    retention/      retention roots and deletion of unreferenced objects
    spending        cost by run, team and bucket; `plinth ops cost`
    reviews/        weekly and monthly review pages; incident postmortems; `plinth ops incident`
"""
