"""The pages of constructions, from real runs of small stand-ins."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import claims
from memobench.analysis import seeds as analysis
from memobench.constructions.dana2025 import Dana2025
from memobench.core.run import Run
from memobench.experiments import EXPERIMENTS
from memobench.experiments.constructions import trained
from memobench.methods.training import Training
from memobench.models.transformer import AttentionOnly
from memobench.report import constructions, panels
from memobench.report import experiment as page
from memobench.tasks.associations import Associations


def _rows_of(text, section):
    """The table of a section of a page, every cell a text."""
    within = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
    lines = [x.strip("|").split("|") for x in within.splitlines() if x.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    return pd.DataFrame(rows, columns=head)


def _pictured(shown, known):
    titled = dataclasses.replace(EXPERIMENTS["constructions/load"], title="A title")
    figure = shown.draw(titled, "quick", known)
    assert figure.get_suptitle() == "A title"
    return figure


def _axes(figure, shape):
    axes = np.array(figure.axes).reshape(shape)
    assert all(axis.get_xlabel() for axis in axes[-1])
    assert all(axis.get_ylabel() for axis in axes[:, 0])
    return axes


def _legend(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


ATTENTION = AttentionOnly(d_model=4, d_head=4, n_heads=3, heads="full")  # 16 are promised.


@pytest.fixture(scope="module")
def loads():
    """A construction at half, all and twice what is promised, in three precisions."""
    runs = [
        Run(
            task=Associations(vocab_size=9, n_sequences=n, seed=seed),
            architecture=ATTENTION,
            method=Dana2025(
                solve="exact" if n <= 16 else "least_squares",
                weights=weights,
            ),
            seed=seed,
        )
        for n in (8, 16, 32)
        for weights in ("float64", "int8", "int4")
        for seed in (2, 3)
    ]
    experiment = dataclasses.replace(
        EXPERIMENTS["constructions/load"],
        presets={"quick": tuple(runs), "full": tuple(runs)},
    )
    return experiment, memobench.run(runs, progress=False)


def test_the_page_of_loads_tells_what_survives(loads, tmp_path):
    experiment, table = loads
    text = page.write(experiment, "quick", table, tmp_path)
    assert "18 of 18 runs are here, 0 diverged" in text
    assert (tmp_path / "constructions/load.png").read_bytes().startswith(b"\x89PNG")
    assert "## Memorized over proven" not in text
    survived = _rows_of(text, "Bits that survive").set_index("weights")
    for weights, bits in (("float64", 64), ("int8", 9), ("int4", 5)):
        row = survived.loc[weights]
        mine = table[table["weights"] == weights]
        each = (mine["bits"] / mine["n_params"]).groupby(mine["n_examples"]).mean()
        best = each.idxmax()
        assert float(row["stored bits"]) == bits
        assert float(row["bits per parameter"]) == pytest.approx(each.max(), abs=6e-4)
        assert float(row["of what is stored"]) == pytest.approx(each.max() / bits, abs=6e-5)
        assert float(row["at load"]) == best / 16
        there = mine[mine["n_examples"] == best]["accuracy"].mean()
        assert float(row["accuracy there"]) == pytest.approx(there, abs=6e-4)
    certified = _rows_of(text, "Certificates")
    assert len(certified) == 9
    assert set(certified["seeds"]) == {"2"}
    for _, row in certified.iterrows():
        mine = table[
            (table["n_examples"] == int(row["n_examples"])) & (table["weights"] == row["weights"])
        ]
        assert row["aimed"] == row["n_examples"]
        assert float(row["accuracy"]) == pytest.approx(mine["aimed_accuracy"].min(), abs=6e-5)
        assert float(row["margin"]) == pytest.approx(mine["margin"].min(), rel=1e-4)
        for name in ("condition", "fit_error", "largest_weight"):
            assert float(row[name]) == pytest.approx(mine[name].max(), rel=1e-4)
    bounds = _rows_of(text, "Bounds").set_index("theorem")
    ratio = table["memorized"] / 16
    dana = bounds.loc["Dana 2025: H·d_h + d"]
    assert dana["runs"] == "18"
    assert float(dana["least"]) == pytest.approx(ratio.min(), abs=6e-4)
    assert float(dana["most"]) == pytest.approx(ratio.max(), abs=6e-4)
    assert float(bounds.loc["counting bits", "most"]) < 1
    # At half the load all is known, whatever else: a claim about twice the load alone is tested.
    (claim,) = experiment.claims
    verdict = _rows_of(text, "Verdicts").iloc[0]
    assert verdict["claim"] == claim.name
    assert verdict["variant"] == claims.NEAREST
    assert "2 of 2 runs" in verdict["evidence"]


def test_the_figure_of_loads_has_a_line_for_each_precision(loads):
    experiment, table = loads
    known = analysis.add_theory(table)
    figure = _pictured(experiment.figure, known)
    axes = _axes(figure, (2, 1))
    assert axes[0, 0].get_title() == "Dana 2025"
    assert axes[0, 0].get_ylabel() == "accuracy"
    assert axes[1, 0].get_ylabel() == "bits per parameter"
    assert axes[1, 0].get_xlabel() == "T over the promised number"
    assert _legend(figure) == ["float64", "int8", "int4"]
    accuracy = known.groupby(["weights", "load"])["accuracy"].mean()
    drawn = [container.lines[0].get_xydata() for container in axes[0, 0].containers]
    assert len(drawn) == 3
    for weights, points in zip(("float64", "int8", "int4"), drawn, strict=True):
        np.testing.assert_allclose(points[:, 0], [0.5, 1, 2])
        np.testing.assert_allclose(points[:, 1], accuracy[weights])


def test_the_page_of_promises_tells_the_worst_of_all_seeds(loads, tmp_path):
    experiment, table = loads
    # Claims are decided on the runs that are wanted.
    stored = table["weights"].replace({"int8": "float32"})
    table = table.assign(weights=stored)[stored != "int4"]
    there = tuple(x for x in experiment.runs("quick") if x.run_id in set(table["run_id"]))
    promised = dataclasses.replace(EXPERIMENTS["constructions/promised"], presets={"quick": there})
    text = page.write(promised, "quick", table, tmp_path)
    verdicts = _rows_of(text, "Verdicts").set_index("claim")
    assert "4 of 4 runs" in verdicts.loc["all known in float64", "evidence"]
    assert "4 of 4 runs" in verdicts.loc["one more is not solvable", "evidence"]
    assert "no run that the claim speaks of" in verdicts.loc["as near as the encoder", "evidence"]
    figure = _pictured(promised.figure, analysis.add_theory(table))
    axes = _axes(figure, (3, 2))
    assert [axis.get_title() for axis in axes[0]] == ["float64", "float32"]
    names = ["condition number", "largest weight", "least margin / largest output"]
    assert [axis.get_ylabel() for axis in axes[:, 0]] == names
    # Margins of what is lost in float32 are below zero.
    assert [axis.get_yscale() for axis in axes[:, 0]] == ["log", "log", "symlog"]
    assert _legend(figure) == ["Dana 2025"]
    # Points of single runs, no means of them.
    assert [len(line.get_xdata()) for line in axes[0, 0].lines] == [6]


def test_seeds_whose_weights_could_not_be_made_are_told(loads):
    _, table = loads
    whole = constructions.certificates(table)
    lost = table.assign(status=["diverged", *table["status"][1:]])
    found = constructions.certificates(lost)
    assert "not_made" not in whole
    assert (found["seeds"] + found["not_made"]).tolist() == whole["seeds"].tolist()
    assert found["not_made"].sum() == 1


@pytest.fixture(scope="module")
def against_training():
    """Seven ways to the weights of a width and a number of heads."""
    wanted = tuple(
        trained.runs(
            6,
            [dataclasses.replace(ATTENTION, d_model=2, d_head=2, n_heads=h) for h in (2, 4)],
            Training(batch_size=16, n_batches=16, epochs=4),
            seeds=1,
        )
    )
    experiment = dataclasses.replace(
        EXPERIMENTS["constructions/trained"], presets={"quick": wanted, "full": wanted}
    )
    return experiment, memobench.run(wanted, progress=False)


def test_the_page_compares_constructions_with_training(against_training, tmp_path):
    experiment, table = against_training
    text = page.write(experiment, "quick", table, tmp_path)
    assert "14 of 14 runs are here" in text
    assert "## Bits that survive" not in text
    compared = _rows_of(text, "Memorized over proven").set_index("n_heads")
    assert compared["promised"].tolist() == ["6", "10"]
    assert list(compared)[-7:] == list(claims.MADE)
    labels = panels.weight_origin(table)
    ratio = {heads: {} for heads in (2, 4)}
    for n_heads, of_heads in ratio.items():
        for made in claims.MADE:
            (row,) = table[(table["n_heads"] == n_heads) & (labels == made)]["memorized"]
            of_heads[made] = row / (2 * n_heads + 2)
            shown = float(compared.loc[str(n_heads), made])
            assert shown == pytest.approx(of_heads[made], abs=6e-3)
    share = np.mean([x[claims.NEAREST] / x[claims.EXACT] for x in ratio.values()])
    assert f"{claims.NEAREST} {share:.0%}" in text
    # Only what was constructed has certificates: exact for the promised number, and for all pairs.
    certified = _rows_of(text, "Certificates")
    assert certified[["n_heads", "aimed", "solve"]].to_numpy().tolist() == [
        [heads, aimed, solve]
        for heads, aimed, solve in (
            ("2", "6", "exact"),
            ("4", "10", "exact"),
            ("2", "36", "least_squares"),
            ("4", "36", "least_squares"),
        )
    ]
    assert (certified["accuracy"].astype(float)[:2] == 1).all()


def test_the_figure_marks_what_is_proven(against_training):
    experiment, table = against_training
    shown = dataclasses.replace(experiment.figure, x=("n_heads", "d_model"))
    known = analysis.add_theory(table)
    figure = _pictured(shown, known)
    axes = _axes(figure, (1, 2))
    assert [axis.get_xlabel() for axis in axes[0]] == ["heads H", "width d"]
    assert [axis.get_title() for axis in axes[0]] == ["d = 2", "H = 2"]
    assert axes[0, 0].get_ylabel() == "memorized associations"
    assert _legend(figure) == [*claims.MADE, "proven"]
    proven = [line for line in axes[0, 0].lines if line.get_linestyle() == "--"]
    assert [line.get_xydata().tolist() for line in proven] == [[[2, 6], [4, 10]]]
