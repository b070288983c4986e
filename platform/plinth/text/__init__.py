"""Foreign text as it is shown, and names in one form. Kernels over text are in `plinth_text`.

    terminal    foreign text as a terminal may print it
    markdown    foreign text as a Markdown page may show it
    plural      counts in words
    hosts       host names of addresses in one form
"""
