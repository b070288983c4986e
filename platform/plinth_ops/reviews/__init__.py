"""The review of a week or month: failed jobs, cost anomalies, service levels, proofs of provenance, suites, promotions.

review    the period of a review, its sections, and the page
schedule  Dagster's schedules of both
command   `plinth ops retrospective`

Everything is read from what is there anyway, for the days before a time; a part that cannot be read says so and does
not pass.
"""
