"""Everything that starts work.

asset_states  every asset of a recipe with its state
pipeline      run a recipe: assets that are up to date are left alone, the rest runs through Dagster
dagster_run   Dagster runs in this process
release_requests  runs of the release job that are due
definitions   Dagster's view of a recipe, with overrides for tests
asset_jobs    jobs over assets with their schedules; definitions that packages add
sensors/      new source files, approvals, failed runs
marks         the check of every asset against marks of unfitness
queueing      whose a Dagster run is and how urgent: its tags
run_launcher  Dagster's launcher, which finds runs whose process has ended
instance      the Dagster instance of a workspace
sqlite_storage  its SQLite databases, with one engine each
last_recipe   the recipe that a workspace ran last
results       pages of results, one per candidate
own_notes     notes in a workspace that count only where this user wrote them
workspace_index  the index of all pages: state, runs, links
index_tiles   its tiles
page_server   the pages over HTTP, for links from Dagster and MLflow
targets       models by the names that people have for them
runs          runs by theirs
servers       the servers of `plinth up`, on loopback
supervised    its parts: started again when they end, and recorded for other commands
dagster_pages  Dagster's pages, for requests that name this server
running       what was started for a workspace: listed, stopped
installation/ a whole installation on this machine, to try: PostgreSQL, S3, TLS, logins
harvest/      the demo's corpus, from text on this machine
recipes/      recipes to run and to extend, found by name
policies/     gate policies to begin with, and those of the demos
cli/          the command `plinth`
"""

#: Names of the jobs in Dagster; an asset may not have the same one.
CANDIDATE, RELEASE = "make_candidate", "make_release"
