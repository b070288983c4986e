"""Running the platform: planning.

    planning/  What a recipe costs before it runs.
"""
