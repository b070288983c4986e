"""The review of a week or month: failed jobs, cost anomalies, service levels, proofs of provenance, suites, promotions.

page      the last whole week or month, one part as a table with a verdict, and the page
parts     the sections
review    all sections of a period, written as a page
schedule  Dagster's schedules of both
command   `plinth ops retrospective`

Everything is read from what is there anyway, for the days before a time; a part that cannot be read says so and does
not pass.
"""
