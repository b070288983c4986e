"""Drawings and template of the page of an experiment; `plinth.experiment.page` fills them.

    figures       effects of arms with intervals; losses by step, a thin line a seed
    page.html.j2  the page
"""
