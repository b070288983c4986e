"""Metrics in Prometheus' form.

    table       names, labels and meaning of all metrics
"""
