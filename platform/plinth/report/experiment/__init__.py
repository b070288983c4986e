"""Drawings and template of the page of an experiment; `plinth.experiment.page` fills them.

    figures       effects of arms with intervals; losses by step; curves of equal compute, the surface of a scaling law
    page.html.j2  the page
"""
