"""Spending: what was spent, on what, by whom.

corpus_cost  storage, requests and core hours by bucket
command      `plinth ops cost`: spending, limits

Does not belong here: the ledger, reservations before a run and their settlement (`plinth.operation.spending`).
"""
