"""Incidents: the facts of a postmortem from evidence alone, their page, and the command that opens and closes one.

postmortem  timeline of signed records, alerts and runs; cost; affected consumers
page        these facts as HTML or Markdown
command     `plinth ops incident`

Does not belong here: the signed records, which freeze promotions (`plinth_registry.incidents`).
"""
