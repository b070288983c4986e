"""Functions that the YAML files name."""


def which(doc):
    return {"1": 0, "2": 1}[doc["answer"]]


def beginnings(doc):
    before = doc["sentence"].index("_")
    return [doc["sentence"][:before] + doc[option] for option in ("option1", "option2")]


def ending(doc):
    return doc["sentence"][doc["sentence"].index("_") + 1 :].strip()


def after_the_war(docs):
    return docs.filter(lambda doc: int(doc["year"]) > 1945)


def judge(doc, results):
    (answer,) = results
    return {"letters": len(answer), "exact_match": float(answer.strip() == doc["year"])}
