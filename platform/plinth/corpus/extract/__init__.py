"""Extraction of main content from HTML, and of text from PDF and LaTeX, in a process that can be killed.

    page           pages and answers, and their serialization; title, canonical URL, date, language and opt-outs, read
                   in one scan of the page's head
    worker         extraction of main content and title from HTML by an engine; handler for blocks of
                   pages, with a CPU limit per page
    content/       the engine `blocks`: blocks of text, and a small model that tells content from the rest
    fallback       the engine `blocks+trafilatura`: a slow engine for articles on which the fast engine is unsure
    readable       conversion of lists and formulas to text as a reader sees them
    streamed       parts of a page that the server sends late, in the places that they are for
    pdf            text of PDF, page by page, by PDFium
    latex          text of LaTeX, with math and tables, by pylatexenc
    extractor      `Extractor`: sends batches of pages to the worker and receives the answers

On a hostile page, a parser written in C or Rust may loop forever or overflow its stack. Nothing inside the same process
can stop it. Therefore pages are sent to a worker process (`compute.worker.ItemStream`). A page that kills the worker
becomes a reject, and the following pages go to a new worker.
"""
