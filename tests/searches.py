"""Small searches that several files of tests share."""

from memobench.core.architecture import Architecture
from memobench.core.run import Run
from memobench.methods.search import Search
from memobench.methods.training import Training
from memobench.tasks.associations import Associations
from tests import small

EXACT = Training(n_batches=8, epochs=2, learning_rate=0.1, final_learning_rate=0.05).exact()
SEARCH = Search(training=EXACT, sizes=2, doublings=1)


def run_of(name="attention_only", n=36, seed=0, method=SEARCH, vocab_size=7, **sizes):
    """A search of an architecture by its name, on so many sequences."""
    sizes = {"d_model": 3, "d_head": 3, "n_heads": 2, **sizes}
    return Run(
        task=Associations(vocab_size=vocab_size, n_sequences=n, seed=seed),
        architecture=small.make(Architecture.get_kind(name), sizes),
        method=method,
        seed=seed + 5,
    )
