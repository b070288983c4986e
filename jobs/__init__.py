"""Everything that starts work.

line         run the recipe: what is up to date is left alone, the rest goes through Dagster
definitions  Dagster's view of a recipe, with overrides for tests
sensors      new source files, approvals, failed runs; the nightly schedule
instance     the Dagster instance of a workspace
remembered   the recipe that a workspace serves
results      the page a run ends with
up           the two web servers, on loopback
harvest/     the demo's corpus, out of what this machine already has
recipes/     recipes to run and to extend
cli/         the command `plinth`
"""
