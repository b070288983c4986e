"""Models trained on buckets of the corpus itself, each an asset with a version: `models/NAME`.

    trainers           the record that describes a trainer; all trainers by kind
    examples           a sample of documents or of a labelled list, as features, cut into splits
    classify/          classifiers and taggers
    ngram/             n-gram models and perplexity bands
    generated_sets     the mark of generated labelled sets, and its refusal
    given              a model that was trained before, given as files
    ready_fasttext     a fastText model of others
    ready_transformer  a classification head of others, a Hugging Face folder
    lexicon            terms with weights and categories

The recipe names models under `corpus.models` and lists under `corpus.lists`. An annotator names those that it needs
(`Annotator.resources`) and reads their files once per process (`Annotator.prepare`); see `plinth.corpus.annotate`.
"""

from plinth.corpus.models.trainers import ModelTrainer, parameters, train, trainer

__all__ = ["ModelTrainer", "parameters", "train", "trainer"]
