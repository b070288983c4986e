"""The ring: what a release owes to others: takedowns, traces, papers, memorisation, personal data in outputs, fairness,
drift. Found through entry points; nothing of the core imports it.
"""
