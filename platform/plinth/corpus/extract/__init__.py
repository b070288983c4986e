"""Main content of HTML, in a process that can be killed.

    page           a page, its text, and the byte format between the two processes
    charset        bytes -> HTML text
    engines        resiliparse and trafilatura: HTML text -> main content, title
    listings       code as it stands in the page, without line numbers
    page_metadata  title, canonical address, date, language, by one scan of the head
    dates          a date as pages write it -> ISO 8601
    child          the child process: a CPU limit per page, set in the kernel
    process        the parent's handle on a child: pipes, and one spare for the next part
    extractor      `Extractor`: sends a batch ahead of the answers; replaces a child that a page has killed
    records        records of the readers with main content in the place of HTML

A parser written in C or Rust may loop for ever or overflow its stack on a hostile page, and nothing inside the
same process can stop it. The child sets timers whose signals end it; the page it was on becomes a reject and the
pages after it go to a new child. Batches keep both processes busy: every time one waits for the other costs what a
small page costs. `compute.engine` cannot carry this: it kills a task for its wall clock, so every page would be a task,
at 0.53 of the bare extractor's speed on pages of 1.4 KB, where a child has 0.83.
"""
