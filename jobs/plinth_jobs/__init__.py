"""Everything that starts work.

asset_states  every asset of a recipe with its state; runs of the release job that are due
pipeline      run a recipe: assets that are up to date are left alone, the rest runs through Dagster
definitions   dagster's view of a recipe, with overrides for tests: jobs over assets with their schedules, owners and
              priorities; definitions that packages add; Dagster runs in this process
sensors       new source files, approvals, the canary, failed runs; the check of every asset against marks
dagster_parts the launcher of runs and the SQLite databases, which settings of an instance name
instance      the Dagster instance of a workspace; alarms, the lines that a pager reads
results       pages of results, one per candidate
workspace_index  the index of all pages: state, runs, links; the pages over HTTP, for links from Dagster and MLflow
index_tiles   its tiles
targets       runs and models by the names that people have for them
servers       the servers of `plinth up`, on loopback
supervised    parts of `plinth up`: started again when they end, recorded for other commands, listed, stopped
dagster_pages  Dagster's pages, for requests that name this server
installation  a whole installation on this machine, to try: PostgreSQL, S3, TLS, logins
object_store  its S3 server's process: HTTPS, signed requests, access by role from `infra/s3`, encryption by default
harvest/      the demo's corpus, from text on this machine
recipes/      recipes to run and to extend, found by name; the recipe that a workspace ran last, and notes in a
              workspace that count only where this user wrote them
policies/     gate policies to begin with, and those of the demos
cli/          the command `plinth`
"""

#: Names of the jobs in Dagster; an asset may not have the same one.
CANDIDATE, RELEASE = "make_candidate", "make_release"
