"""Budgets: no job is submitted that could exceed a limit, and what each cost is known.

parameters   settings of a workspace: team, prices, where the ledger lies
"""
