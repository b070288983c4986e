"""Service levels of a workspace: indicators of all runs and assets, and error budgets.

asset    the asset `service_levels` with its figure and checks, every hour
export   Parquet tables and views for DuckDB
tile     error budgets on the index page
command  `plinth ops sli`

Does not belong here: the indicators (`plinth.operation.indicators`), the gate (`plinth_registry.gates.operation`).
"""
