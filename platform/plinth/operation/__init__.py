"""Running the platform: planning, spending, goodput, service levels, metrics, alerts.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
indicators/ good seconds of all seconds, error budgets, their gate
objectives  objectives of a workspace, over all of its runs and assets
continued_training  a recipe that goes on from a release whose text has drifted
settings_file  settings of a workspace that people write
asset_log   when sources arrived, suites were checked, assets were published
level_export  service levels as Parquet and views of DuckDB
backup/   what cannot be made again, copied while others write, and put back
retention/  what must be kept, and the deletion of what nothing needs
checklists/  lines with evidence, remedy and owner: preproduction, readiness, incident, security
goodput   every rank-second of a run by its cause, with the state of its job
metrics/  the table of metrics and their exporter
alerts/   the table of alerts: rules, routes, an evaluator
dashboards/  Grafana's JSON from a table of panels
gamedays/  faults on purpose, in a rehearsal of their own, with a verdict
"""
