"""The ring: operating a workspace that others rely on: exporter, alerts, dashboards, service levels, checklists,
backup, retention, reviews, incidents, game days. Found through entry points; nothing of the core imports it.
"""
