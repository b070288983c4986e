"""The page of one training run: what happened, why, and what it cost, over one axis.

build     write the page of a run, from its directory and its manifests
metrics   the timeline as columns over one axis, and the cost of the run: pure functions of events
panels    series, shares and layers as panels over one axis, drawn by matplotlib
probes    the panel and the table of probes
step_parts   the parts of a step as stacked shares
formats   numbers as text, with their units
interventions   the table of what the guard did
added_sections   sections that packages add
run_page  `page(events, about) -> str`; a script of the page reads values out at the pointer
"""
