"""Running the platform: planning.

planning/  the cost of a recipe before it runs
"""
