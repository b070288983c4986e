"""Main content of HTML and text of PDF and LaTeX, extracted in a process that can be killed.

    page           pages and answers, and their serialization; title, canonical URL, date, language and opt-outs, read
                   in one scan of the page's head
    worker         resiliparse and trafilatura: HTML text to main content and title; blocks of pages under a CPU limit
                   per page
    readable       lists and formulas as a reader sees them
    pdf            text of PDF, page by page, by PDFium
    latex          text of LaTeX, with math and tables, by pylatexenc
    extractor      `Extractor`: sends batches of pages to the worker and receives the answers

On a hostile page, a parser written in C or Rust may loop forever or overflow its stack. Nothing inside the same process
can stop it. Therefore pages are sent to a worker process (`compute.worker.ItemStream`). A page that kills the worker
becomes a reject, and the following pages go to a new worker.
"""
