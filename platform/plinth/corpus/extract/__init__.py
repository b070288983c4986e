"""Main content of HTML and text of PDF and LaTeX, in a process that can be killed.

    page           a page, its text, and the bytes of both; title, canonical address, date, language and opt-outs, by
                   one scan of its head
    worker         resiliparse and trafilatura: HTML text to main content and title; blocks of pages under a CPU limit
                   per page
    readable       lists and formulas as a reader sees them
    pdf            text of PDF, page by page, by PDFium
    latex          text of LaTeX, with math and tables, by pylatexenc
    extractor      `Extractor`: batches of pages to the worker and back

A parser written in C or Rust may loop for ever or overflow its stack on a hostile page, and nothing inside the
same process can stop it. Pages therefore go to a worker (`compute.worker.ItemStream`): the page that ends it becomes a
reject, and the pages after it go to a new worker.
"""
