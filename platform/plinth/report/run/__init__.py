"""The page of one training run: what happened, why, and what it cost, over one axis.

metrics   the timeline as columns over one axis, and the cost of the run: pure functions of events
panels    series, shares and layers as panels over one axis, drawn by matplotlib
sections  interventions of the guard, parts of a step, probes, sections that packages add; numbers as text
run_page  `page(events, about) -> str`; a script of the page reads values out at the pointer
"""
