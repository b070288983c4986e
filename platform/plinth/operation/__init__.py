"""Running the platform: planning, spending, goodput.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
goodput   every rank-second of a run by its cause, with the state of its job
"""
