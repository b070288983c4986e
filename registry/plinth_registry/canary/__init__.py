"""The trial of a canary: it is compared with the champion, document by document and request by request.

    judgement   streams of paired values -> give back, go on, may become champion; pure
    feeds       pairs out of the owner's metrics, kept between looks: lines of JSON, or two queries; rejects are counted
    watch       values of both that the evaluator has signed for; what is observed, one look, and what follows from it

Does not belong here: how a version is moved (`plinth_registry.promotion`).
"""
