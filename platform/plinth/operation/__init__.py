"""Running the platform: planning, spending, goodput, service levels.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
indicators/ good seconds of all seconds, error budgets, their gate
objectives  objectives of a workspace, over all of its runs and assets
settings_file  settings of a workspace that people write
asset_log   when sources arrived, suites were checked, assets were published
goodput   every rank-second of a run by its cause, with the state of its job
"""
