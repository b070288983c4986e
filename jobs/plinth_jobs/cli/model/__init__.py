"""Commands about what a checkpoint can do: `plinth model COMMAND`.

probes      `plinth model probes list | explain | check`: probes, their items, and files of your own
evaluation  `plinth model evaluation`: bits per byte by slice, the worst documents, the spans where two models differ
compare     `plinth model compare`: two models side by side, and the page
"""
