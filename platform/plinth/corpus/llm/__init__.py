"""Answers of a language model about documents, from an endpoint that speaks the OpenAI API.

    documents ─► questions (a sample) ─► client ─► answers, one record per question ─► one part per part of documents

    parameters   endpoint, and the parameters of a question
    client       requests: retries, rate limits, time limits, size limits, checks of the responses
    asking       questions in flight, records of answers, budget, end of an attempt
    answers      stage that asks about a sample of documents
    rewriting    documents derived from the documents of another bucket

An answer is a record of the step cache under the digests of model, prompt, parameters and document. A stage that was
killed continues with the questions that have no record. Columns do not belong here: see
`plinth.corpus.annotate.llm`.
"""
