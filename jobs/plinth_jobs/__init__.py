"""Commands, the pipeline, Dagster definitions and servers.

    asset_states  state of every asset of a recipe; due runs of the release job
    pipeline      run a recipe: skip assets that are up to date, run the rest through Dagster; preview of a run
    definitions   Dagster definitions of a recipe, overridable in tests: jobs, schedules, owners, priorities;
                  definitions added by packages; Dagster runs in this process
    dg            the recipe as a component of a team's own Dagster project
    project       a new project: recipe from a folder of data, gate policy, CI workflow, Dagster project
    sensors       new source files, approvals, the canary, failed runs; the taint check of every asset
    dagster_parts run launcher and SQLite databases, named in instance settings
    instance      the Dagster instance of a workspace; alerts for a pager
    results       results pages, one per candidate
    workspace_index  the index of all pages: state, runs, links; the HTTP server of the pages
    index_tiles   tiles of the index
    targets       lookup of runs and models by name
    servers       the servers of `plinth up`, on loopback
    supervised    processes of `plinth up`: restarted on exit, recorded for other commands, listed, stopped
    dagster_pages  Dagster's web server behind a host check
    installation  trial installation on this machine: PostgreSQL, S3, TLS, logins
    object_store  S3 server of the trial installation: HTTPS, signed requests, access by role from `infra/s3`,
                  encryption by default
    harvest/      the demo's corpus, from text on this machine
    recipes/      packaged recipes; the recipe last run in a workspace; notes in a workspace, which are trusted only if
                  this user wrote them
    policies/     packaged gate policies, including those of the demos
    cli/          the command `plinth`
"""

#: Names of Dagster jobs; asset names must differ.
CANDIDATE, RELEASE = "make_candidate", "make_release"
