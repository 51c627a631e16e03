"""Training that starts from constructed weights, or moves some of the parameters only."""

import jax
import numpy as np
import pytest

import memobench
from memobench.common.errors import UserError
from memobench.constructions import making
from memobench.constructions.dana2025 import Dana2025
from memobench.core import module as models
from memobench.core.run import Run
from memobench.methods.training import Training
from memobench.models.sequence_encoder import SequenceEncoder
from memobench.models.transformer import MLP, AttentionOnly
from memobench.planner import packing
from memobench.tasks.associations import Associations
from tests import small

NEAREST = Dana2025(solve="least_squares")
FEATURES = Dana2025(n_aimed=0)


def _run(d_model=4, n_heads=5, d_mlp=0, seed=0, task_seed=0, method=None, **options):
    sizes = {"d_model": d_model, "d_head": d_model, "n_heads": n_heads, "heads": "full"}
    architecture = MLP(**sizes, d_mlp=d_mlp) if d_mlp else AttentionOnly(**sizes)
    fields = {"n_batches": 8, "epochs": 2, "protocol": "exact", "batch_size": None}
    return Run(
        task=Associations(vocab_size=7, seed=task_seed),
        architecture=architecture,
        method=method or Training(**(fields | options)),
        seed=seed,
    )


def _trained(*runs):
    """Results of the runs, trained together."""
    return runs[0].method.train(packing.make_pack(runs), lambda _: None)


def _at_start(run):
    """Parameters of a run alone before its first step."""
    pack = packing.make_pack([run])
    start = making.initial_variables(pack) if run.method.start else small.init_pack(pack)
    return jax.device_get(start["params"])


@pytest.mark.parametrize(
    ("trained", "batch_size", "frozen"),
    [
        (
            "read_out",
            None,
            {"token_embedding", "position_embedding", "query", "key", "value", "mlp_in"},
        ),
        ("all_but_attention", 16, {"query", "key"}),
    ],
)
def test_only_what_is_named_moves(trained, batch_size, frozen):
    protocol = "published" if batch_size else "exact"
    run = _run(d_mlp=6, trained=trained, protocol=protocol, batch_size=batch_size)
    before, after = _at_start(run), jax.device_get(_trained(run).variables["params"])
    names = {name: name.removeprefix("layer0_").removesuffix("_bias") for name in before}
    assert frozen < set(names.values())
    for name, kind in names.items():
        if kind in frozen:
            assert before[name].tobytes() == after[name].tobytes(), name
        else:
            assert np.abs(before[name] - after[name]).max() > 1e-3, name


def test_the_read_out_of_a_construction_moves_and_its_features_do_not():
    run = _run(start=FEATURES, trained="read_out")
    result = _trained(run)
    made = making.construct(_run(method=FEATURES))
    after = jax.device_get(result.variables["params"])
    for name, exact in made.params.items():
        stays = name not in ("layer0_output", "unembedding", "layer0_mlp_out")
        same = np.array_equal(after[name][0], exact.astype(np.float32))
        assert same == stays or not exact.size, name
    assert result.loss_R[0] < result.step_loss_RxL[0, 0]


def test_deep_models_name_the_last_read_out_and_every_attention():
    architecture = MLP(d_model=4, d_head=2, n_heads=2, d_mlp=3, n_layers=2, heads="compressed")
    run = Run(task=Associations(vocab_size=5), architecture=architecture, method=Training())
    module = run.module()
    params = models.shapes(module, 2)["params"]

    def chosen(trained):
        return {x for x in params if Training(trained=trained).trains(module)(x)}

    assert chosen(None) == set(params)
    last = {"layer1_output", "layer1_mlp_out", "unembedding", "decompress"}
    assert chosen("read_out") == last
    maps = {f"layer{i}_{name}" for i in (0, 1) for name in ("query", "key")}
    assert chosen("all_but_attention") == set(params) - maps


@pytest.mark.parametrize("weights", ["float32", "int4"])
def test_a_fine_tuned_run_starts_at_the_construction_s_loss(weights):
    start = Dana2025(solve="least_squares", weights=weights)
    table = memobench.run([_run(method=start), _run(start=start)], progress=False)
    constructed, tuned = (row for _, row in table.iterrows())
    assert constructed["accuracy"] < 0.9
    assert tuned["curve_loss"][0] == pytest.approx(constructed["loss"], rel=1e-4)
    assert tuned["curve_accuracy"][0] == pytest.approx(constructed["accuracy"], abs=1e-6)
    assert tuned["start"] == str(start)


def test_fine_tuning_betters_the_construction():
    tuned = _run(start=NEAREST, n_batches=64, epochs=4, final_learning_rate=1e-3)
    result = _trained(tuned)
    assert result.loss_R[0] < 0.5 * result.step_loss_RxL[0, 0]
    assert result.accuracy_R[0] > result.step_accuracy_RxL[0, 0]


@pytest.mark.rounding
@pytest.mark.parametrize(
    "options",
    [
        # Adam moves what has next to no gradient as rounding tells, and constructed weights are
        # large: at a small rate that is little.
        {"start": NEAREST, "learning_rate": 1e-4, "final_learning_rate": 1e-5},
        {"start": FEATURES, "trained": "read_out"},
        {"trained": "read_out"},
    ],
    ids=["start", "start and trained", "trained"],
)
def test_packed_equals_alone_and_padding_stays_zero(options):
    runs = [
        _run(seed=23, **options),
        _run(seed=23, task_seed=2, **options),
        _run(seed=1, **({"learning_rate": 3e-2} | options | {"d_model": 3, "n_heads": 7})),
    ]
    for run in runs if "start" in options else ():
        # Seeds whose terms hardly cancel: in what does, float32 has no digits to compare.
        params = _at_start(run)
        sums_D = np.abs(params["layer0_output"][0]).sum(axis=(0, 2))
        assert (np.abs(params["unembedding"][0]) @ sums_D).max() < 500
    packed = _trained(*runs)
    for i, run in enumerate(runs):
        if i == 2:
            alone = _trained(run)
            theirs, mine = packed.step_loss_RxL[i], alone.step_loss_RxL[0]
            np.testing.assert_allclose(theirs[:1], mine[:1], rtol=1e-5)
            np.testing.assert_allclose(theirs, mine, rtol=1e-4)
            np.testing.assert_allclose(packed.loss_R[i], alone.loss_R[0], rtol=1e-4)
        true_shapes = models.shapes(run.module(), 2)["params"]
        small.assert_padding_is_zero(packed.variables["params"], i, true_shapes)


def test_runs_of_different_starts_do_not_share_a_pack():
    runs = [_run(), _run(start=NEAREST), _run(start=FEATURES), _run(trained="read_out")]
    assert len(packing.plan(runs, "cpu")) == 4
    with pytest.raises(ValueError, match="differ in more than"):
        packing.make_pack(runs[:2])
    # What is trained decides the program; where it starts from does not.
    shapes = [packing.make_pack([run]).signature for run in runs]
    assert shapes[0] == shapes[1] == shapes[2] != shapes[3]


def test_a_start_beyond_the_promise_is_told_in_one_line():
    run = _run(start=Dana2025())
    with pytest.raises(UserError, match="promises 24 examples at these sizes and 49") as told:
        memobench.run([run], progress=False)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("trained", ["read_out", "all_but_attention"])
def test_an_architecture_that_names_no_parts_says_so(trained):
    run = Run(
        task=Associations(vocab_size=5),
        architecture=SequenceEncoder(d_model=2),
        method=Training(trained=trained),
    )
    for attempt in (
        lambda: run.method.check_model(run),
        lambda: memobench.run([run], progress=False),
    ):
        with pytest.raises(
            UserError, match=f"trained='{trained}': SequenceEncoderModule offers"
        ) as e:
            attempt()
        assert "\n" not in str(e.value)
    with pytest.raises(UserError, match="trained='everything' is not one of read_out"):
        Training(trained="everything")
