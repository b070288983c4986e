"""Main content of HTML and text of PDF and LaTeX, in a process that can be killed.

    page           a page, its text, and the bytes of both
    engines        resiliparse and trafilatura: HTML text -> main content, title
    formulas       raised and lowered text, MathML: as text, before the page is parsed
    lists          lists of the main content, and the numbers of their items
    listings       code as it stands in the page, without line numbers
    page_metadata  title, canonical address, date, language, by one scan of the head
    pdf            text of PDF, page by page, by PDFium
    latex          text of LaTeX, with maths and tables, by pylatexenc
    pdf_lines      lines of a page into paragraphs, by where they stand
    latex_macros   macros that a LaTeX file defines, expanded
    dates          a date as pages write it -> ISO 8601
    handler        the worker: blocks of pages under a CPU limit per page
    extractor      `Extractor`: batches of pages to the worker and back
    records        records of the readers with main content in the place of HTML

A parser written in C or Rust may loop for ever or overflow its stack on a hostile page, and nothing inside the
same process can stop it. Pages therefore go to a worker (`compute.item_stream`): the page that ends it becomes a
reject, and the pages after it go to a new worker.
"""
