"""Models trained on buckets of the corpus itself, each an asset with a version: `models/NAME`.

    trainers           the record that describes a trainer; all trainers by kind
    examples           a sample of documents or of a labelled list, as features, cut into splits; the mark of
                       generated labelled sets
    classifier         classifiers and taggers, of classify/ (linear, trees, probabilities); artefact: their files
    ngram_counts       vocabulary, counts and smoothing of n-gram models; ngram/: the models and perplexity bands
    given              a model that was trained before, given as files; a ready fastText model; a ready classification
                       head

The recipe names models under `corpus.models` and lists under `corpus.lists`. An annotator names those that it needs
(`Annotator.resources`) and reads their files once per process (`Annotator.prepare`); see `plinth.corpus.annotate`.
"""

from plinth.corpus.models.trainers import ModelTrainer, parameters, train, trainer

__all__ = ["ModelTrainer", "parameters", "train", "trainer"]
