"""Running the platform: planning, spending, goodput, the log of assets.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
settings_file  settings of a workspace that people write
asset_log   when sources arrived, suites were checked, assets were published
goodput   every rank-second of a run by its cause, with the state of its job
"""
