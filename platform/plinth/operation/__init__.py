"""Running the platform: planning, spending.

planning/  the cost of a recipe before it runs
spending/  budgets: what runs may cost, and have cost
"""
