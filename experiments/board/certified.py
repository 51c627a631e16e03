"""Certificates of `board/typical` and `board/peak`: the best models of every entry, counted.

    python -m memobench.experiments.board.certified              # of all
    python -m memobench.experiments.board.certified proof        # of constructions only
    python -m memobench.experiments.board.certified 2048         # of these budgets only
    python -m memobench.experiments.board.certified new          # of entries without a file only
    python -m memobench.experiments.board.certified kept         # of kept weights not yet counted
    python -m memobench.experiments.board.certified peaks        # of peaks not yet counted

Runs keep the weights of most bits in their folder, `--results=runs` by default. Where they are gone
the best models are trained again: rows say what every model came to know, and seeds, steps and
learning rates make it again. Alone its arithmetic rounds differently than in a pack, so that it
ends elsewhere: what its certificate counts is what it knows, and the best of several, and of those
found before, stands for the entry. Of each entry one file holds the weights that know most bits of
the whole set, another those that know the largest part to 99%, a third those that know most bits of
a set of any size; the last two are always trained again. Of theorems a file holds the weights of
the proof, for as many associations as are promised.
"""

import argparse
import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from memobench import certificates, engine
from memobench.board import capacity_summary, families
from memobench.board import table as board
from memobench.certificates import counting
from memobench.common.errors import UserError
from memobench.common.folders import SHARDS
from memobench.constructions import making
from memobench.constructions.base import Construction
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.cells import cells, from_cells
from memobench.core.run import Run
from memobench.engine import initializing
from memobench.experiments.board import typical
from memobench.methods import thresholds, training
from memobench.methods.capacity import Capacity
from memobench.methods.capacity_policy import method_of
from memobench.planner import packing
from memobench.report import tables
from memobench.report.names import name_entry
from memobench.store import results
from memobench.store.published import published
from memobench.store.rows import architecture_columns, parse_list

FOLDER = pathlib.Path("results/board")
# Models trained again for each file; the best of them is kept.
CANDIDATES = 3
# At most so many trials are trained again, until one knows its part.
TRIALS = 12
WHOLE, PART, PEAK, PROOF = "most bits", "largest part", "peak", "proof"
THEOREMS = ("dana2025", "random_features", "bubeck2020")


class Model(NamedTuple):
    """One model of a run: its place among them, its table, steps, learning rate and examples."""

    number: int
    table: int
    steps: int
    rate: float
    n_examples: int


def best_models(method: Capacity, row: Mapping[str, Any], n_examples: int) -> list[Model]:
    """The models of a row that knew most bits, the best first."""
    bits_KxM = capacity_summary.models(row, "rung_bits").reshape(method.rungs, method.lanes)
    order = np.argsort(-bits_KxM, axis=None)[:CANDIDATES]
    places = [divmod(int(i), method.lanes) for i in order]
    steps, rates = method.ladder, parse_list(row["rung_rates"])
    return [
        Model(method.pilots + model, model // method.inits, steps[rung], rates[rung], n_examples)
        for rung, model in places
    ]


def best_of_grid(run: Run, row: Mapping[str, Any]) -> list[Model]:
    """The models of a Peak's row that knew most bits of sets of any size, the best first."""
    method: Any = run.method
    bits_JxRxT = np.array(parse_list(row["size_bits"]))
    order = np.argsort(-bits_JxRxT, axis=None)[:CANDIDATES]
    sizes, rate = method.sizes(run), method.training.learning_rate
    return [
        Model(int(t), int(t), method.steps, rate * method.rate_factors[r], sizes[j])
        for j, r, t in zip(*np.unravel_index(order, method.shape), strict=True)
    ]


def best_trials(method: Capacity, row: Mapping[str, Any]) -> list[Model]:
    """The trials of a row that came to know the largest parts, the largest first."""
    trials = enumerate(method.all_trials(row))
    known = sorted(((n, i, rate) for i, (rate, n, complete) in trials if complete), reverse=True)
    first = method.pilots + method.lanes
    return [
        Model(first + i, i % method.tables, method.steps, rate, n) for n, i, rate in known[:TRIALS]
    ]


def train_again(run: Run, chosen: Sequence[Model]) -> Iterator[Any]:
    """The certificate of each model that does not diverge."""
    method = method_of(run)
    plain = method.training
    for model in chosen:
        whole: Any = method.tasks(run)[model.table]
        budget = board.find_budget(whole)
        if budget and model.n_examples <= budget:
            whole = families.task(budget, whole.seed)
        again = Run(
            task=whole.replace(n_sequences=model.n_examples),
            architecture=run.architecture,
            method=plain.replace(
                epochs=model.steps // plain.n_batches,
                learning_rate=model.rate,
                final_learning_rate=model.rate * plain.final_learning_rate / plain.learning_rate,
            ),
        )
        key = jax.random.fold_in(initializing.init_key(run), model.number)
        weights = models.init_on_host(run.module(), run.task.context_length, key)
        initial = jax.tree.map(lambda x: np.asarray(x)[None], weights)
        result = engine.train(training.TrainingPolicy(packing.make_pack([again]), initial))
        if np.isfinite(result.loss_R[0]):
            params = jax.tree.map(lambda x: np.asarray(x)[0], result.variables)["params"]
            part = None if model.n_examples == whole.n_examples else model.n_examples
            yield certificates.make(whole, run.architecture, params, first=part, by="memobench")


def load_kept(run: Run, runs: results.Path) -> list[certificates.Certificate]:
    """The weights of most bits that a run has kept in a folder of runs, if it has."""
    path = results.weights_path(runs, run.run_id)
    if not path.exists():
        return []
    return [dataclasses.replace(certificates.load(path), seed=None, by="memobench")]


def certify(
    row: Mapping[str, Any], folder: pathlib.Path, runs: results.Path
) -> Iterator[dict[str, Any]]:
    """Writes the certificates of an entry, and yields what they know."""
    run = from_cells(row)
    method = method_of(run)
    about = {
        "run_id": run.run_id,
        "family": run.architecture.family,
        "track": typical.track_of(row),
    }
    of_whole = load_kept(run, runs) or train_again(
        run, best_models(method, row, run.task.n_examples)
    )
    counted = [(counting.count(each)["bits"], i, each) for i, each in enumerate(of_whole)]
    if counted:
        best = max(counted)[2]
        yield {**about, "of": WHOLE, **counting.certify(certificates.save(best, folder))}
    for each in train_again(run, best_trials(method, row)):
        known = counting.count(each, ("float32",))["known"]
        if thresholds.is_complete(known, each.first or run.task.n_examples):
            yield {**about, "of": PART, **counting.certify(certificates.save(each, folder))}
            return


def certify_peak(row: Mapping[str, Any], folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Writes the certificate of the best model of a peak, and yields what it knows."""
    run = from_cells(row)
    about = {"run_id": run.run_id, "family": run.architecture.family, "track": board.track_of(row)}
    again = train_again(run, best_of_grid(run, row))
    counted = [(counting.count(each)["bits"], i, each) for i, each in enumerate(again)]
    if counted:
        best = max(counted)[2]
        yield {**about, "of": PEAK, **counting.certify(certificates.save(best, folder))}


def construct(budget: int, folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Writes a certificate for each family that a theorem is about, and yields what it knows.

    Of all shapes and theorems the one that promises most, if its weights keep the promise in
    float32: features of many examples in few dimensions may lose rank, or margins, to rounding.
    """
    task = families.task(budget)
    methods = [Construction.get_kind(name)(weights="float32") for name in THEOREMS]
    promises: dict[str, list[Any]] = {}
    for shape, method in itertools.product(families.shapes(budget), methods):
        sizes = cells(Run(task=task, architecture=shape, method=method))
        # Recipes are of one layer.
        if method.bound.applies(sizes) and sizes["n_layers"] == 1:
            promised = int(method.bound.value(sizes))
            promises.setdefault(shape.family, []).append((promised, shape, method))
    for family, of_family in promises.items():
        for n, shape, method in sorted(of_family, key=lambda each: -each[0]):
            run = Run(task=task.replace(n_sequences=n), architecture=shape, method=method)
            with contextlib.suppress(UserError):
                params = making.judged_variables(run)["params"]
                made = certificates.make(task, shape, params, first=n, by="memobench")
                if counting.count(made, ("float32",))["known"] == n:
                    about = {"run_id": run.run_id, "family": family, "track": board.CONSTRUCTED}
                    found = counting.certify(certificates.save(made, folder))
                    yield {**about, "of": PROOF, **found, "theorem": method.name}
                    break


def entry(row: Any) -> tuple[Any, ...]:
    """The entry of a row: its track, budget and architecture."""
    cells = (row.get(name) for name in architecture_columns())
    budget = capacity_summary.budget(row["n_params"])
    return row["track"], budget, *(None if pd.isna(cell) else cell for cell in cells)


def select_best(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The row of most bits and that of the largest part of every entry; of equals the first."""
    kept: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        known = "n_examples" if row["of"] == PART else "bits"
        before = kept.setdefault((*entry(row), row["of"]), row)
        if row[known] > before[known]:
            kept[*entry(row), row["of"]] = row
    return list(kept.values())


def page(found: pd.DataFrame) -> str:
    """The page of certified capacities."""
    order = ["budget", "bits_per_parameter"]
    found = found.assign(budget=found["n_params"].map(capacity_summary.budget))
    found = found.sort_values(order, ascending=False)
    whole, part, at_peak, proof = (found[found["of"] == x] for x in (WHOLE, PART, PEAK, PROOF))
    of_entry = {entry(row): row["n_examples"] for row in part.to_dict("records")}
    largest = pd.Series([of_entry.get(entry(row)) for row in whole.to_dict("records")], whole.index)
    parts = [
        "# Certified capacities",
        "The best weights of every entry that runs of `board/typical` have kept, or that were "
        "trained again where none were kept, published in full and counted by `memobench "
        "certify`: bits of an overfull set, the largest set known to 99%, and bits per byte of the "
        "file's weights as they are and rounded (the scales of integers are counted). A capacity "
        "is a statement that weights exist: these, in the folder `weights`. Means over many "
        "trainings, and the most that any of them came to know, are in "
        "[board/typical](../large/board/typical.md); where that was more, its weights are gone. "
        "Rounded to four bits, weights that were not trained for it keep next to nothing of an "
        "overfull set ([precision](../blocks/precision.md) has some that were).",
        _table(whole, {"largest part known to 99%": largest}),
    ]
    if not at_peak.empty:
        parts += [
            "## At the peak",
            "The best models of [board/peak](../large/board/peak.md), of sets of any size, trained "
            "again.",
            _table(at_peak, {"set": at_peak["n_examples"]}),
        ]
    if not proof.empty:
        parts += [
            "## Weights of proofs",
            "Of each family the shape to which a theorem promises most associations, and weights "
            "of its proof in float32 that know them all.",
            _table(proof, {"theorem": proof["theorem"], "promised": proof["n_examples"]}),
        ]
    return "\n\n".join(parts)


def _table(rows: pd.DataFrame, more: Mapping[str, pd.Series]) -> str:
    suffixes = {name: "" if name == "float32" else f"_{name}" for name in counting.FORMATS}
    records: list[Any] = rows.to_dict("records")
    shapes = [Architecture.from_row(row) for row in records]
    shown = {
        "entry": [name_entry(x, " ".join(x.shown_sizes)) for x in shapes],
        "track": rows["track"],
        "parameters": rows["n_params"],
        "bits": rows["bits"],
        **more,
        "bits / parameter": rows["bits_per_parameter"],
        **{f"bits / byte, {x}": rows[f"bits_per_byte{end}"] for x, end in suffixes.items()},
        "weights": rows["file"],
    }
    digits = {name: 3 for name in shown if "/" in name} | {"bits": 0}
    return tables.markdown(pd.DataFrame(shown), digits)


def main(parts: Sequence[str], runs: results.Path) -> None:
    """Makes weights, tables and the page anew.

    Weights replace those that were found before only where they know more.

    Args:
      parts: budgets, "proof", "new", "kept" or "peaks", to which it keeps; all without any.
      runs: the folder of runs that may have kept weights.
    """
    of_both = (("board/typical", typical.track_of), ("board/peak", board.track_of))
    rows: dict[str, list[Any]] = {name: published(name).to_dict("records") for name, _ in of_both}
    of_typical, of_peak = (
        [{**row, "track": track} for row in rows[name] if (track := track_of(row))]
        for name, track_of in of_both
    )
    found: list[Any] = pd.read_csv(FOLDER / "certified.csv").to_dict("records")
    budgets = {int(part) for part in parts if part.isdigit()} or {
        int(row["n_examples"]) for row in of_typical
    }
    made: list[Iterable[Mapping[str, Any]]] = []
    if not {"proof", "peaks"} & set(parts):
        of_runs = [row for row in found if row["of"] in (WHOLE, PART)]
        known = set(map(entry, of_runs)) if "new" in parts else set()
        counted = {row["run_id"] for row in found}
        for row in of_typical:
            has_kept = results.weights_path(runs, row["run_id"]).exists()
            left_out = "kept" in parts and (row["run_id"] in counted or not has_kept)
            if row["n_examples"] in budgets and entry(row) not in known and not left_out:
                made.append(certify(row, FOLDER / "weights", runs))
    if not {"proof", "new", "kept"} & set(parts):
        counted = {row["run_id"] for row in found}
        for row in of_peak:
            if capacity_summary.budget(row["n_params"]) in budgets and row["run_id"] not in counted:
                made.append(certify_peak(row, FOLDER / "weights"))
    if not {"new", "kept", "peaks"} & set(parts):
        made += (construct(budget, FOLDER / "weights") for budget in sorted(budgets))
    # Each takes minutes: what was found stays if a later one fails.
    for of_entry in made or [()]:
        found = select_best([*found, *of_entry])
        write(found)


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table and the page of these rows, whose files of weights are kept alone."""
    tables.write_csv(pd.DataFrame(rows), FOLDER / "certified.csv")
    written = pd.read_csv(FOLDER / "certified.csv")
    (FOLDER / "certified.md").write_text(page(written) + "\n", "utf-8")
    # Last, so that no table lists a file that is gone.
    for old in FOLDER.glob("weights/*.safetensors"):
        if old.name not in {row["file"] for row in rows}:
            old.unlink()


if __name__ == "__main__":
    command = argparse.ArgumentParser()
    command.add_argument("parts", nargs="*")
    command.add_argument("--results", default=SHARDS)
    given = command.parse_args()
    main(given.parts, given.results)
