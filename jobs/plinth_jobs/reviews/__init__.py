"""The review of a week or month: failed jobs, cost anomalies, service levels, proofs of provenance, suites, promotions.

review      all parts of a period, and its page
period      the last whole week or month
failures    failed jobs, and events of runs that say why
cost        what was spent, against earlier periods; jobs that cost more a token than their like
evidence    service levels, provenance, suites, releases
section     one part as a table with a verdict

Everything is read from what is there anyway, for the days before a time; a part that cannot be read says so and is no
pass. Does not belong here: how the page looks (`plinth.report.period_page`).
"""
