"""Bounds by hand, where they apply, and limits that stop a run that cannot be."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import memobench
from memobench import theory
from memobench.analysis import seeds as analysis
from memobench.analysis import theorems
from memobench.common.errors import UserError
from memobench.constructions.dana2025 import Dana2025
from memobench.core.architecture import Architecture
from memobench.core.cells import cells
from memobench.core.run import Run
from memobench.core.spec import kind
from memobench.experiments.mahdavi2024.own_constructions import Mahdavi2024
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.optimum import Optimum
from memobench.methods.training import Training
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import AttentionOnly
from memobench.numerics import metrics
from memobench.runtime import local
from memobench.store import results
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts

SHORT = Training(n_batches=8, epochs=4).exact()


def _sizes(task=None, method=None, *, name, **sizes):
    """The columns of a run of an architecture by its name."""
    task = task or Associations(vocab_size=50)
    if method is None:
        labelled = isinstance(task, LabelledContexts)
        method = Annealing() if labelled else Training()
    kind = Architecture.get_kind(name)
    known = {field.name for field in dataclasses.fields(kind)}
    usual = {"d_model": 10, "d_head": 4, "n_heads": 3}
    architecture = kind(**({x: size for x, size in usual.items() if x in known} | sizes))
    return cells(Run(task=task, architecture=architecture, method=method))


def _labelled(n=6, **fields):
    return LabelledContexts(n_examples=20, context_length=n, input_dim=64, **fields)


def _attention(**sizes):
    return _sizes(**({"name": "attention_only"} | sizes))


def _query(n=6, **sizes):
    return _sizes(task=_labelled(n), **({"name": "query_attention"} | sizes))


@pytest.mark.parametrize(
    ("bound", "sizes", "value"),
    [
        (theory.COROLLARY_2, _attention(), 3 * 4 + 10),
        (theory.COROLLARY_2, _attention(n_heads=1, d_head=10), 20),
        # Experiment 1 of Dana et al. at H = 20.
        (theory.COROLLARY_2, _attention(n_heads=20, d_head=10), 210),
        (theory.MAHDAVI_1, _attention(), 3 * 3 + 1),
        (theory.MAHDAVI_1, _attention(n_heads=20, d_head=10), 181),
        (theory.RANDOM_FEATURES, _sizes(name="mlp", d_mlp=7), 17),
        (theory.BUBECK, _sizes(name="mlp", d_mlp=7, activation="relu"), 9),
        (theory.BUBECK, _sizes(name="mlp", d_mlp=96, activation="relu"), 216),
        (
            theory.PROPOSITION_3,
            _sizes(name="sequence_encoder", d_model=2),
            2500,
        ),
        (
            theory.LINEAR_LEAST_SQUARES,
            _sizes(name="linear_memory", task=Associations(context_length=1)),
            10,
        ),
        (theory.THEOREM_1, _query(n=6), 3 * 3 + 1),
        (theory.THEOREM_1, _query(n=3), 3 * 2 + 1),
        (theory.THEOREM_1, _query(n=1), 1),
        # The largest size of Mahdavi et al.: H = 20, n = 32, d = d_h = 64.
        (theory.THEOREM_1, _query(n=32, d_model=64, d_head=64, n_heads=20), 621),
        (theory.PROPOSITION_2, _query(n=6), 3 * 5 + 1),
        (theory.RANK_OF_WEIGHTS, _query(n=6), 3 * 5 + 1),
    ],
)
def test_bounds_by_hand(bound, sizes, value):
    # Limits apply to what was measured, which sizes do not say.
    assert isinstance(bound, theory.Limit) or bound.applies(sizes)
    assert bound.value(sizes) == value


def test_heads_wider_than_the_stream_prove_no_more_than_as_wide_ones():
    wide, square = _attention(d_model=5, d_head=10), _attention(d_model=5, d_head=5)
    for bound in (theory.COROLLARY_2, theory.MAHDAVI_1):
        assert bound.value(wide) == bound.value(square)


TOKENS, DEEP = Associations(vocab_size=50), {"n_layers": 2}
ONE_TOKEN = Associations(vocab_size=50, context_length=1)
# Sizes, the bounds of theorems.lower_bounds that apply to them, and what is promised.
CASES = [
    (_attention(), {"COROLLARY_2", "MAHDAVI_1"}, 22),
    (_attention(heads="full"), {"COROLLARY_2", "MAHDAVI_1"}, 22),
    (_attention(heads="full", d_head=1), {"COROLLARY_2", "MAHDAVI_1"}, 13),
    # Compressed heads of one dimension, or streams of one, tell two tokens apart.
    (_attention(d_head=1), set(), np.nan),
    (_attention(d_model=1, d_head=2), set(), np.nan),
    (_attention(**DEEP), {"COROLLARY_2", "MAHDAVI_1"}, 22),
    (_attention(task=ONE_TOKEN), set(), np.nan),
    (_sizes(name="mlp", d_mlp=0), {"COROLLARY_2", "MAHDAVI_1"}, 22),
    (_sizes(name="mlp", d_mlp=7), {"RANDOM_FEATURES", "SILENT_MLP"}, 22),
    (_sizes(name="mlp", d_mlp=17), {"RANDOM_FEATURES", "SILENT_MLP"}, 27),
    (_sizes(name="mlp", d_mlp=7, activation="silu"), {"RANDOM_FEATURES", "SILENT_MLP"}, 22),
    # Fewer tokens than dimensions do not span the stream.
    (_attention(task=Associations(vocab_size=9)), set(), np.nan),
    (_sizes(name="mlp", d_mlp=7, d_model=1), set(), np.nan),
    (_query(), {"THEOREM_1"}, 10),
    (_query(d_model=4), {"THEOREM_1"}, 10),
    (_query(n=3, d_model=4), {"THEOREM_1"}, 7),
    (_query(**DEEP), set(), np.nan),
    (_query(**DEEP, residual=False), set(), np.nan),
    (_query(**DEEP, residual=True), {"THEOREM_1"}, 10),
    (_query(residual=True), {"THEOREM_1"}, 10),
    (_sizes(name="query_attention", task=_labelled(n_classes=None)), {"THEOREM_1"}, 10),
    ({**_attention(), "architecture": "a_model_of_your_own"}, set(), np.nan),
]


def _names(sizes):
    named = {id(bound): name for name, bound in vars(theory).items()}
    return {named[id(x)] for x in theorems.lower_bounds() if bool(x.applies(sizes))}


@pytest.mark.parametrize(("sizes", "names", "promised"), CASES)
def test_what_applies_to_a_run_and_what_it_is_promised(sizes, names, promised):
    # Others may promise more to relu neurons and further models; these at least are told.
    assert _names(sizes) - {"BUBECK"} == names
    np.testing.assert_equal(float(theorems.promised_examples(sizes)), float(promised))
    applying = [bound.value(sizes) for bound in theorems.lower_bounds() if bound.applies(sizes)]
    assert max(applying, default=None) == (None if np.isnan(promised) else promised)


def test_relu_neurons_are_promised_the_larger_of_both():
    few = _sizes(name="mlp", d_mlp=8, activation="relu")
    assert float(theorems.promised_examples(few)) == max(8 + 10, 9 * 2, 3 * 4 + 10)
    many = _sizes(name="mlp", d_mlp=96, activation="relu")
    larger = max(x.value(many) for x in theorems.lower_bounds() if x.applies(many))
    assert float(theorems.promised_examples(many)) == larger >= 106


ENCODER = _sizes(name="sequence_encoder", d_model=2)
MEMORY = _sizes(name="linear_memory", task=ONE_TOKEN)
SEVERAL = Distributions(vocab_size=50, conditional="uniform", n_next=2)


def test_encoders_and_linear_memories_have_their_own():
    several = _sizes(name="sequence_encoder", d_model=2, task=SEVERAL)
    for bound, sizes, others in (
        (theory.PROPOSITION_3, ENCODER, [several, _attention(), _query()]),
        # Keys are parameters: they may be the answers' values.
        (theory.PROPOSITION_3, MEMORY, [several, _attention(), _query()]),
        (theory.LINEAR_LEAST_SQUARES, MEMORY, [ENCODER, _attention(), _query()]),
        (theory.OUTER_PRODUCTS, MEMORY, [ENCODER, _attention(), _query()]),
    ):
        assert bound.applies(sizes)
        assert not any(bound.applies(other) for other in others)
    assert 1 <= theory.OUTER_PRODUCTS.value(MEMORY) < 10


def test_a_table_says_of_every_row_what_the_row_says_of_itself():
    rows = [sizes for sizes, _, _ in CASES] + [ENCODER, MEMORY]
    table = pd.DataFrame(rows, index=np.arange(len(rows))[::-1])
    for bound in theorems.lower_bounds():
        applies = np.broadcast_to(bound.applies(table), len(rows))
        assert [bool(x) for x in applies] == [bool(bound.applies(row)) for row in rows]
    each = [float(theorems.promised_examples(row)) for row in rows]
    np.testing.assert_array_equal(theorems.promised_examples(table), each)
    # One row of the table is a mapping too.
    for (_, row), expected in zip(table.iterrows(), each, strict=True):
        np.testing.assert_equal(float(theorems.promised_examples(row)), expected)


def test_t_eps_is_the_least_number_beyond_the_mass():
    for n, zipf, eps in ((10, None, 0.25), (50, 1.0, 0.1), (50, 2.5, 0.01), (7, 0.5, 0.0)):
        prior_T = np.arange(1, n + 1) ** -(zipf or 0.0)
        prior_T = prior_T / prior_T.sum()
        found = theory.t_eps(n, zipf, eps)
        assert prior_T[:found].sum() >= 1 - eps - 1e-12
        assert found == 1 or prior_T[: found - 1].sum() <= 1 - eps + 1e-12
    assert theory.t_eps(10, None, 0.25) == 8


@pytest.fixture(scope="module")
def table():
    """Real rows, trained and constructed, and one as if a search had found a lower loss."""
    tokens = Associations(vocab_size=5)
    transformer = AttentionOnly(d_model=3, d_head=3, n_heads=4, heads="full")
    query = QueryAttention(d_model=4, d_head=4, n_heads=2)
    labelled = LabelledContexts(n_examples=5, context_length=3, input_dim=4, n_classes=3)
    constructed = Dana2025(n_aimed=15)
    nearest = Dana2025(solve="least_squares")
    annealing = Annealing(batch_size=4, steps=20, evaluate_every=10)
    runs = [
        Run(task=tokens, architecture=transformer, method=SHORT),
        Run(task=tokens, architecture=transformer, method=constructed),
        Run(task=tokens, architecture=transformer, method=nearest),
        Run(
            task=tokens,
            architecture=transformer,
            method=dataclasses.replace(nearest, weights="int4"),
        ),
        Run(task=labelled, architecture=query, method=annealing),
        Run(task=labelled, architecture=query, method=Mahdavi2024()),
    ]
    table = memobench.run(runs, progress=False)
    encoder = SequenceEncoder(d_model=3)
    search = Run(task=tokens, architecture=encoder, method=Optimum())
    found = {**table.loc[NEAREST], **cells(search), "stored_bits": None, "feature_rank": None}
    found["loss"] = table.loc[[TRAINED, CONSTRUCTED, NEAREST, INT4], "loss"].min() - 0.01
    found |= {"start_losses": [found["loss"]] * 3, "gradient_norm": 1e-9}
    return results.to_table([*table.to_dict("records"), found])


TRAINED, CONSTRUCTED, NEAREST, INT4, ANNEALED, LABELLED, OPTIMUM = range(7)


def _with(table, row, **values):
    """The table with other values in one row; NaN elsewhere where it had no such column."""
    table = table.copy()
    for name, value in values.items():
        if name not in table:
            table[name] = np.nan
        table[name] = pd.to_numeric(table[name], errors="coerce")
        table.loc[row, name] = value
    return table


def test_real_rows_pass(table):
    assert table["status"].eq("ok").all()
    theorems.check(table)
    known = analysis.add_theory(table)
    theorems.check(known)
    # Each limit has runs to be checked on.
    for limit in theorems.upper_bounds():
        assert np.asarray(limit.applies(known)).any(), limit.name
    assert known.loc[ANNEALED, "promised"] == known.loc[LABELLED, "promised"] == 2 * 2 + 1
    assert known.loc[TRAINED, "promised"] == 4 * 3 + 3
    assert known.loc[CONSTRUCTED, "feature_rank"] == 15


@pytest.mark.parametrize(
    ("row", "limit", "values"),
    [
        (TRAINED, theory.COUNTING, lambda row: {"bits": 32 * row["n_params"] + 65}),
        (CONSTRUCTED, theory.COUNTING, lambda row: {"bits": 64 * row["n_params"] + 65}),
        (INT4, theory.COUNTING, lambda row: {"bits": 5 * row["n_params"] + 65}),
        (OPTIMUM, theory.COUNTING, lambda row: {"bits": 64 * row["n_params"] + 65}),
        # Two heads over three vectors.
        (ANNEALED, theory.PROPOSITION_2, lambda row: {"attention_rank": 2 * 2 + 2}),
        (
            LABELLED,
            theory.RANK_OF_WEIGHTS,
            lambda row: {"feature_rank": 2 * 2 + 2},
        ),
        (TRAINED, theory.PROPOSITION_1, lambda row: {"certified_floor": row["loss"] + 2e-5}),
    ],
)
def test_a_row_beyond_a_limit_is_told_with_run_and_limit(table, row, limit, values):
    new = values(table.loc[row])
    with pytest.raises(theory.Violation) as told:
        theorems.check(_with(table, row, **new))
    message = str(told.value)
    assert table.loc[row, "run_id"] in message
    assert limit.name in message
    assert limit.source in message
    assert "1 of 7 runs" in message
    assert "\n" not in message
    # At the limit itself there is nothing wrong.
    (name, value) = next(iter(new.items()))
    theorems.check(_with(table, row, **{name: value - (2e-5 if name == "certified_floor" else 1)}))


def test_labels_by_a_rule_are_not_limited_by_the_number_of_weights(table):
    ruled = _with(table, TRAINED, bits=1e9)
    # A user's task, whose kind names no theorem, or one of memobench without random labels.
    ruled.loc[TRAINED, "task"] = "bijection"
    theorems.check(ruled)


def test_fewer_bits_a_weight_leave_less_room(table):
    bits = 16.0 * table.loc[INT4, "n_params"]
    for row in (TRAINED, CONSTRUCTED, NEAREST, OPTIMUM):
        theorems.check(_with(table, row, bits=bits))
    with pytest.raises(theory.Violation):
        theorems.check(_with(table, INT4, bits=bits))
    room = theory.COUNTING.value(table) - 64
    per_weight = (room / table["n_params"]).to_numpy()
    np.testing.assert_allclose(per_weight, [32, 64, 64, 5, 32, 64, 64])


def test_a_violation_is_told_whatever_the_rows_are_called(table):
    beyond = _with(table, TRAINED, bits=1e9)
    twice = pd.concat([beyond, beyond])
    with pytest.raises(theory.Violation, match="2 of 14 runs"):
        theorems.check(twice)


def test_the_loss_below_the_floor_stops_a_report(table):
    floor = table.loc[OPTIMUM, "loss"]
    with pytest.raises(theory.Violation, match="floor of the best sequence encoder"):
        analysis.add_theory(_with(table, TRAINED, loss=floor - 1e-3))
    analysis.add_theory(_with(table, TRAINED, loss=floor + 1e-9))


SEARCHED = {"starts": 64, "gradient_norm": 1e-9, "start_losses": [0.5, 0.5, 0.6]}


@pytest.mark.parametrize(
    ("changes", "certifies"),
    [
        ({}, True),
        ({"start_losses": [0.5, 0.5 + 1e-8]}, True),
        ({"start_losses": [0.0, 1e-9]}, True),
        # Optimum(starts=1, adam_steps=1, steps=1)
        ({"starts": 1, "start_losses": [0.5], "gradient_norm": 0.1}, False),
        ({"starts": 1, "start_losses": [0.5]}, False),
        ({"starts": 8}, False),
        ({"gradient_norm": 1e-3}, False),
        ({"gradient_norm": float("nan")}, False),
        ({"start_losses": [0.5, 0.51, 0.51]}, False),
        ({"start_losses": []}, False),
        ({"start_losses": None}, False),
        ({"start_losses": "[0.5, 0.5]"}, False),
    ],
)
def test_an_optimum_is_certified_before_it_condemns_a_run(table, changes, certifies):
    """Its loss is the floor of reports whatever it is."""
    searched = {**SEARCHED, **changes}
    assert theory.is_certified(searched) == certifies
    table = table.copy()
    for name, value in searched.items():
        table[name] = table[name].astype(object)
        table.at[OPTIMUM, name] = value
    honest = _with(table, TRAINED, loss=table.loc[OPTIMUM, "loss"] - 0.01)
    if certifies:
        with pytest.raises(theory.Violation, match="floor of the best sequence encoder"):
            analysis.add_theory(honest)
    else:
        known = analysis.add_theory(honest)
        assert known.loc[TRAINED, "floor"] == table.loc[OPTIMUM, "loss"]
        assert np.isnan(known.loc[TRAINED, "certified_floor"])


def test_an_impossible_measurement_is_kept_and_told(tmp_path, monkeypatch):
    architecture = AttentionOnly(d_model=2, d_head=2)
    run = Run(task=Associations(vocab_size=5), architecture=architecture, method=SHORT)
    with monkeypatch.context() as patched:
        patched.setattr(metrics, "memorized_bits", lambda *_: 1e6)
        with pytest.raises(theory.Violation, match=run.run_id):
            memobench.run([run], results=tmp_path, progress=False)
    kept = memobench.load_results(tmp_path)
    assert kept["bits"].tolist() == [1e6]
    # It is not trained again: whoever looks is told again.
    monkeypatch.setattr(local.Threads, "start", lambda *_: pytest.fail("trained again"))
    with pytest.raises(theory.Violation, match="do not publish"):
        memobench.run([run], results=tmp_path, progress=False)


def test_bounds_of_a_table_count_their_runs(table):
    known = analysis.add_theory(table)
    bounds = analysis.bounds(known).set_index("theorem")
    ratio = known["memorized"] / known["promised"]
    dana = bounds.loc[theory.COROLLARY_2.name]
    assert dana["runs"] == 4
    assert dana["says"] == "memorizes"
    tokens = ratio[[TRAINED, CONSTRUCTED, NEAREST, INT4]]
    np.testing.assert_allclose([dana["least"], dana["most"]], [tokens.min(), tokens.max()])
    assert bounds.loc[theory.THEOREM_1.name, "runs"] == 2
    assert bounds.loc[theory.PROPOSITION_2.name, "runs"] == 1
    assert (bounds.loc[bounds["says"] == "at most", "most"] <= 1).all()


SIZES = {"d_model": 3, "d_mlp": 2, "architecture": "mlp"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"value": 3}, "value=3 is not a function of sizes"),
        ({"about": "architecture"}, "about='architecture' is not a tuple"),
        ({"about": ("architectur",)}, "about 'architectur'; did you mean architecture?"),
        ({"value": lambda sizes: 1 / 0}, "its value raises ZeroDivisionError: division by zero"),
        ({"where": lambda sizes: [][1]}, "its where raises IndexError"),
    ],
)
def test_a_mistake_in_a_theorem_is_one_line_that_names_it(changes, said):
    given = {"name": "mine", "source": "me", "value": lambda sizes: sizes["d_mlp"]}

    def use():
        bound = theory.Bound(**given | changes)
        assert bound.applies(SIZES)
        bound.value(SIZES)

    with pytest.raises(UserError, match=f"^theorem 'mine': .*{said}") as error:
        use()
    assert "\n" not in str(error.value)


def test_a_column_that_a_table_lacks_stays_a_key_error():
    """So that tables of other rows are passed over."""
    bound = theory.Bound(name="mine", source="me", value=lambda sizes: sizes["d_head"])
    with pytest.raises(KeyError, match="d_head"):
        bound.value(SIZES)


def _limit(measure):
    return theory.Limit(name="mine", source="me", value=lambda sizes: 0.5, measure=measure)


@pytest.mark.parametrize(
    ("column", "fix"), [("acuracy", "did you mean accuracy"), ("zzzz", "declare it")]
)
def test_a_limit_that_reads_a_column_nobody_declares_is_told(table, column, fix):
    misspelt = _limit(lambda sizes: sizes[column])
    said = f"^theorem 'mine' reads '{column}', which is not a column of runs; {fix}"
    with pytest.raises(UserError, match=said):
        list(theorems.violations(table, [misspelt]))


@pytest.mark.parametrize("cls", [theory.Bound, theory.Limit])
def test_a_page_tells_of_a_theorem_that_reads_a_column_nobody_declares(table, cls):
    """The theorem is one that a user's kind names."""
    more = {"measure": lambda sizes: 0.0} if cls is theory.Limit else {}
    misspelt = cls(name="mine", source="me", value=lambda sizes: sizes["d_mpl"], **more)

    @kind("its_own")
    class ItsOwn(Associations):
        theorems = {misspelt: lambda sizes: True}

    with pytest.raises(UserError, match=r"^theorem 'mine' reads 'd_mpl', .* did you mean d_mlp"):
        analysis.bounds(analysis.add_theory(table))


@pytest.mark.parametrize("column", ["accuracy", *theorems.OF_THEORY])
def test_a_limit_passes_over_tables_that_lack_a_declared_column(table, column):
    limit = _limit(lambda sizes: sizes[column])
    lacking = table.drop(columns=column, errors="ignore")
    assert list(theorems.violations(lacking, [limit])) == []
    ((found, _, beyond),) = theorems.violations(
        table.assign(**{column: [1.0] + [0.4] * 6}), [limit]
    )
    assert (found, beyond.tolist()) == (limit, [True] + [False] * 6)


def test_what_theory_adds_to_a_table_is_what_it_says(table):
    assert set(analysis.add_theory(table)) - set(table) == set(theorems.OF_THEORY)
