"""Small specs of every registered kind, for tests that go through the registries."""

import dataclasses

from memobench.errors import UserError

# Values of fields, wherever a kind has a field of this name.
TASK = {
    "vocab_size": 5,
    "context_length": 3,
    "conditional": "uniform",
    "n_next": 2,
    "n_sequences": 5,
    "n_examples": 6,
    "n_classes": 3,
    "input_dim": 5,
    "n_subjects": 3,
    "n_relations": 2,
    "n_answers": 2,
    "n_noise": 4,
}
ARCHITECTURE = {"d_model": 4, "d_head": 3, "n_heads": 2, "d_mlp": 5}


def make(kind, values):
    """A spec of a kind with those of the values that it has a field for."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: x for name, x in values.items() if name in names})


def serves(architecture, task):
    """Whether the architecture builds a model for the task."""
    try:
        architecture.build(task)
    except UserError:
        return False
    return True
