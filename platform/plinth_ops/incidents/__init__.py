"""Incidents: the facts of a postmortem from evidence alone, their page, and the command that opens and closes one.

postmortem  facts of a postmortem from evidence alone, and their page
command     `plinth ops incident`

Does not belong here: the signed records, which freeze promotions (`plinth_registry.incidents`).
"""
