"""Every experiment that is declared: its runs, and a report of rows as if they had been made."""

import jax
import numpy as np
import pandas as pd
import pytest

from memobench import claims, engine
from memobench.analysis import seeds as analysis
from memobench.constructions.base import Construction
from memobench.core import module as models
from memobench.core.architecture import Architecture
from memobench.core.cells import cells
from memobench.core.columns import number
from memobench.core.spec import kind
from memobench.engine import batches
from memobench.experiments import EXPERIMENTS
from memobench.experiments.blocks.figure import Groups
from memobench.experiments.board.design import Effects
from memobench.experiments.board.finalists import Finalists
from memobench.experiments.board.fresh import Fresh
from memobench.experiments.board.longer import Changes
from memobench.experiments.board.peak import Peaks
from memobench.experiments.capacity.exposure_figure import Exposure
from memobench.experiments.capacity.scaling_figure import Scaling
from memobench.methods import bisection
from memobench.methods.capacity import Capacity
from memobench.methods.peak import Peak
from memobench.methods.search import Search
from memobench.planner import packing
from memobench.report import experiment as page
from memobench.report.capacity_summary import Shapes, Typical
from memobench.store import published, results


def _fake(run):
    """A row as if the run had been made: what a report needs, without the training."""
    module = run.module()
    n_params, n_params_memory = models.count_parameters(module, run.task.context_length)
    accuracy = min(1.0, 0.05 + n_params_memory / 20_000 + 0.01 * run.seed)
    meaningful = run.task.name != "distributions"
    sizes = cells(run)
    n_heads = sizes["n_heads"]
    # Facts are counted only where all of them occur equally often.
    counted = sizes["vocab_size"] and meaningful and sizes["zipf_exponent"] is None
    known = min(run.task.n_examples, n_params_memory) / 3 if counted else np.nan
    return {
        **sizes,
        "n_params": n_params,
        "n_params_memory": n_params_memory,
        "n_params_active": n_params,
        "n_params_distinct": n_params,
        "status": "ok",
        "accuracy": accuracy if meaningful else np.nan,
        "accuracy_protocol": accuracy if meaningful else np.nan,
        "memorized": known,
        "bits": 5 * known if run.task.name != "bijection" else np.nan,
        # No encoder's floor is above what it bounds.
        "loss": 0.1 if run.architecture.name == "sequence_encoder" else 2 - accuracy,
        "curve_steps": [1],
        "curve_accuracy": [0.0],
        "curve_loss": [1.0],
        "stopped_at": None,
        "stream_ranks": [4] * sizes["n_layers"],
        "attention_rank": None if sizes["residual"] is None else 1,
        "saturated": 0.6,
        "examples_by_serving_heads": [3] + [1] * n_heads,
        "largest_attention": np.full((n_heads, 4), 0.5).tolist(),
        "device": "none",
        "pack_size": 1,
        "compile_seconds": 1.0,
        "run_seconds": 1.0,
        **{"memobench": "0", "commit": "none", "date": "2026-01-01"},
        **(_certificate(sizes) if run.method.protocol == "constructed" else {}),
        **(_found(run) if isinstance(run.method, Search) else {}),
        **(_models(run, n_params) if isinstance(run.method, Capacity) else {}),
        **(_grid(run, n_params) if isinstance(run.method, Peak) else {}),
    }


def _models(run, n_params):
    """Models of a Capacity that know more with more steps and vary a little."""
    method = run.method
    bits_KxM = n_params + np.arange(method.rungs)[:, None] + np.arange(method.lanes) % 3
    return {
        "rung_steps": method.ladder,
        "rung_rates": [0.01] * method.rungs,
        "rung_bits": bits_KxM.tolist(),
        "rung_known": (bits_KxM // 8).tolist(),
        "complete_trials": [[9 + i % 7, int(i % 7 < 3)] for i in range(method.threshold_trials)],
        "pilot_trials": [[3.0, 11, 1]] * method.trial_pilots if method.trial_pilots else None,
        "trial_rate": 0.03 if method.trial_pilots else None,
        "edge_of_rates": False,
        "best_bits": float(bits_KxM.max()),
        "best_complete": 11,
    }


def _grid(run, n_params):
    """Trainings of a Peak that vary a little."""
    bits = n_params + np.arange(run.method.lanes).reshape(run.method.shape) % 7
    return {"size_bits": bits.tolist(), "size_known": (bits // 8).tolist()}


def _certificate(sizes):
    """What constructed weights say."""
    promises = None
    if sizes["task"] == "associations":
        promises = int(Construction.get_kind(sizes["theorem"]).bound.value(sizes))
    return {**_CERTIFICATE, "promises": promises}


def _found(run):
    """A search that ended after one doubling, which gained little."""
    n, steps = run.task.n_examples, run.method.steps
    trials = [
        bisection.Trial(steps * times, size, 1.0, known, known, 1.0)
        for times in (1, 2)
        for size, known in ((n, n // 3 + times), (n // 4, n // 4), (n // 4 + 1, n // 8))
    ]
    return bisection.columns(n, trials, 2)


_CERTIFICATE = {
    **{"feature_rank": 1, "condition": 1e3, "fit_error": 1e-9, "aimed_accuracy": 1.0},
    **{"aimed_loss": 0.0, "margin": 0.1, "gamma": 0.0, "encoder_loss": 0.1},
    **{"largest_weight": 2.0, "stored_bits": 64.0, "basis_condition": 1.0, "seconds": 1.0},
    **{"scale_used": None},
}
# Published pages are made anew from their own rows (test_published_pages): one of every kind of
# figure, and what is not published, are made here.
_KINDS = {type(found.figure): name for name, found in reversed(EXPERIMENTS.items())}
# Of these there are pages in tests of their own.
_HAVE_PAGES = {"board/design", "constructions/promised"}
_QUICK = {name for name, presets in published.files().items() if "quick" in presets}
_REPORTED = {*_KINDS.values(), *(EXPERIMENTS.keys() - _QUICK)}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in _HAVE_PAGES))
        for name in sorted(_REPORTED)
    ],
)
def test_every_experiment_has_a_report(name, tmp_path):
    experiment = EXPERIMENTS[name]
    # Fields of users' kinds are columns too, and pandas warns of tables in more than 100 pieces.
    fields = {f"mine_{i}": number("mine", default=0.0) for i in range(60)}
    annotations = {"__annotations__": dict.fromkeys(fields, float)}
    kind("mine")(type("Mine", (Architecture,), {**fields, **annotations}))
    table = results.to_table([_fake(run) for run in experiment.presets["quick"]])
    text = page.write(experiment, "quick", table, tmp_path)
    found = pd.read_csv(f"{tmp_path / experiment.name}_verdicts.csv")
    tested = experiment.claims_of("quick")
    assert set(found["claim"]) == {claim.name for claim in tested}
    assert all(claim.statement in text for claim in tested)
    short = bool(experiment.claims) and not tested
    assert ("too short to decide any claim" in text) == short
    assert ("## Capacities" in text) == (table["method"] == "searched").any()
    sections = experiment.figure.sections(analysis.add_theory(table))
    assert ("## Attention over MLP" in text) == isinstance(experiment.figure, Exposure)
    assert all(section in text for section in sections)
    picture = tmp_path / f"{experiment.name}.png"
    assert picture.exists() == ("quick" not in experiment.too_short)
    assert not picture.exists() or picture.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [
        pytest.param(found, preset, id=f"{preset}-{name}")
        for name, found in EXPERIMENTS.items()
        for preset in found.presets
        if preset in ("quick", "full")
    ],
)
def test_every_experiment_is_well_declared(experiment, preset):
    runs = experiment.presets[preset]
    assert len({run.run_id for run in runs}) == len(runs) > 0
    for run in runs[:: max(1, len(runs) // 40)]:
        run.module()
    names = [claim.name for claim in experiment.claims]
    assert len(set(names)) == len(names)
    # The board measures, whatever was said; others without claims draw what was found elsewhere.
    figure = experiment.figure
    measures = isinstance(figure, (Changes, Effects, Finalists, Fresh, Peaks, Shapes, Typical))
    assert names or measures or (isinstance(figure, Scaling) and figure.guides)
    table = pd.DataFrame([cells(run) for run in runs])
    trained = table[table["method"] == "trained"]
    # Their intervals are over designs.
    if not trained.empty and not isinstance(figure, (Changes, Effects)):
        assert trained["seed"].nunique() >= claims.MIN_SEEDS
    # How long an annealing takes depends on the number of examples.
    trained = trained[trained["protocol"] != "annealed"]
    # What training adds to a construction is compared at equal steps.
    compares = (table["method"] == "constructed").any()
    # Capacities are compared at the steps of their sources.
    compares |= isinstance(figure, (Changes, Effects, Exposure, Groups, Scaling, Typical))
    if not trained.empty and not compares:
        assert set(trained["protocol"]) <= {"published", "exact"}
        # Every conclusion is repeated with twice the steps.
        budgets = trained.groupby(["protocol", "heads"])["steps"].agg(["min", "max", "nunique"])
        assert (budgets["max"] == 2 * budgets["min"]).all()
        assert (budgets["nunique"] == 2).all()
    if preset == "full" and "published" in set(table["protocol"]) and not compares:
        assert set(claims.variant(table)) == set(claims.VARIANTS.values())
    published = experiment.published_table()
    assert published["published"].between(0, 1).all()
    if preset == "full":  # Every published point belongs to a run of the full preset.
        sizes = [column for column in published.columns if column != "published"]
        named = table.rename(columns={"steps": "published_steps"})
        assert len(published.merge(named[sizes].drop_duplicates(), on=sizes)) == len(published)


def _large():
    """The run of the largest set for each kind of training, if a step may read it in parts."""
    found = {}
    for run in (run for x in EXPERIMENTS.values() for runs in x.presets.values() for run in runs):
        if run.task.n_examples <= batches.READ_AT_ONCE or run.method.cost(run).closed_form:
            continue
        listed = "listed" if getattr(run.task, "listed", False) else "whole"
        kinds = (
            run.method.canonical()["name"],
            run.method.protocol,
            run.architecture.name,
            run.task.name,
        )
        key = (*kinds, listed)
        found[key] = max(found.get(key, run), run, key=lambda run: run.task.n_examples)
    return found


def test_the_largest_sets_can_be_trained():
    """Their programs are made, but not compiled: quick presets and other tests have small sets."""
    large = _large()
    assert large
    for kinds, run in large.items():
        for shape in packing.programs(packing.make_pack([run])):
            chunk = engine.to_compile(*shape)["chunk"]
            try:
                jax.eval_shape(chunk.function, *chunk.arguments)
            except Exception as error:
                error.add_note("-".join(kinds))
                raise
