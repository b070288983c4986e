"""Budgets: no job is submitted that could exceed a limit, and what each cost is known.

parameters   settings of a workspace: team, prices, where the ledger lies
ledger       reservations and limits, in SQLite or PostgreSQL
bounds       the most that the rest of a run may take
corpus_admission  the same for stages of the corpus: cores and requests
admission    reserve before a job is submitted, or refuse
settlement   what a job cost, by its timeline
use          what the rank-seconds of a run went to
energy       kWh and carbon, measured or rated
summary      what was spent, by run, bucket, team, experiment, person
"""
