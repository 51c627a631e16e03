"""Tables of runs that nobody made, whose truth is known."""

import numpy as np
import pandas as pd

N_HEADS = (1, 6, 11, 16, 21, 26, 31)
WIDTHS = range(3, 14)
VOCABULARY, EXAMPLES = 50, 2500


def row(accuracy, seed=0, **sizes):
    sizes = {"d_model": 10, "n_heads": 1, "d_mlp": 0, "steps": 100, **sizes}
    sizes = {"architecture": "attention_only", "d_head": sizes["d_model"], **sizes}
    n_params = 4 * sizes["d_model"] ** 2 * sizes["n_heads"] + sizes["d_mlp"]
    method = {"protocol": "exact", "heads": "compressed", "status": "ok", "seed": seed}
    measures = {"accuracy": accuracy, "accuracy_protocol": accuracy}
    task = {
        "task": "associations",
        "vocab_size": VOCABULARY,
        "n_examples": EXAMPLES,
        "context_length": 2,
    }
    task |= {"contexts": None, "n_classes": None, "residual": None}
    return {**task, "n_params": n_params, **method, **measures, **sizes}


def make(accuracy, points, noise=0.01, seeds=5, number=0):
    """A table of noisy runs; accuracy takes the sizes of a point, a dict."""
    random = np.random.default_rng(number)
    return pd.DataFrame(
        row(accuracy(point) + noise * random.normal(), seed, **point)
        for point in points
        for seed in range(seeds)
    )


def along(column, values, accuracy, **options):
    """A table over one column; accuracy takes its value."""
    points = [{column: value} for value in values]
    return make(lambda point: accuracy(point[column]), points, **options)


def widths_of_heads(values, accuracy, d_model=17, **options):
    """A table over the dimension of the heads; accuracy takes its value."""
    points = [{"d_head": value, "d_model": d_model} for value in values]
    return make(lambda point: accuracy(point["d_head"]), points, **options)


def heads_and_widths(accuracy, widths=(5, 10), **options):
    """A table over heads and widths; accuracy takes heads and width."""
    points = [{"d_model": d, "n_heads": h} for d in widths for h in N_HEADS]
    return make(lambda point: accuracy(point["n_heads"], point["d_model"]), points, **options)


def sets(column, values, accuracy, **options):
    """A table over one column for two sets; accuracy takes its value and the set's size."""
    points = [
        {column: value, "n_examples": n, "context_length": 8}
        for value in values
        for n in (200, 400)
    ]
    return make(lambda point: accuracy(point[column], point["n_examples"]), points, **options)


def families(difference, steps=(100,), **options):
    """Attention and MLP of two widths, sizes a percent apart; difference takes steps."""
    points = [
        {"architecture": name, "d_model": d, "n_params": size, "d_mlp": size, "steps": budget}
        for name, factor in (("attention_only", 1), ("mlp", 1.01))
        for d in (5, 10)
        for size in (int(factor * base) for base in (1000, 2000, 3000, 4000))
        for budget in steps
    ]

    def accuracy(point):
        gained = difference(point["steps"]) if point["architecture"] == "mlp" else 0
        return 0.1 + point["n_params"] / 8000 + gained

    return make(accuracy, points, **options)


def promised(factor):
    """Accuracy of a model that memorizes so many times Corollary 2."""

    def accuracy(n_heads, width):
        memorized = factor * (n_heads * width + width)
        return 1 / VOCABULARY + (1 - 1 / VOCABULARY) * memorized / EXAMPLES

    return accuracy


def bound(sizes):
    return sizes["n_heads"] * sizes["d_head"] + sizes["d_model"]


def quadratic(x):
    return 0.1 + 0.002 * x**2
