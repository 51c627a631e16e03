"""Certificates: one file for equal weights, and what is counted of them."""

import dataclasses
import json
import re
import shutil

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from absl.testing import flagsaver
from hypothesis import strategies as st

import memobench
from memobench import certificates
from memobench.board import table as board
from memobench.certificates import counting
from memobench.cli import main as cli
from memobench.common import strict_json
from memobench.common.errors import UserError
from memobench.core import module as models
from memobench.core.run import PackResult, Weights
from memobench.experiments.capacity.own_models import RecallTransformer
from memobench.experiments.capacity.own_tasks import FactualRecall
from memobench.experiments.mahdavi2024.own_methods import Annealing
from memobench.experiments.mahdavi2024.own_models import QueryAttention
from memobench.methods.training import Training
from memobench.models.transformer import MLP
from memobench.numerics import metrics, precision
from memobench.planner import packing
from memobench.runtime import verify, worker
from memobench.store import results
from memobench.tasks.associations import Associations
from memobench.tasks.distributions import Distributions
from memobench.tasks.labelled_contexts import LabelledContexts
from tests import entries, small

TASK = Associations(vocab_size=5, n_sequences=12, seed=3)
MODEL = MLP(d_model=3, d_head=2, d_mlp=4)


def drawn(architecture=MODEL, task=TASK, of_weights=0, **more):
    """A certificate of random weights, large enough that a model is sure of something."""
    random = np.random.default_rng(of_weights)
    shapes = models.shapes(architecture.module_for(task), task.context_length)["params"]
    params = jax.tree.map(lambda x: random.standard_normal(x.shape), shapes)
    return certificates.make(task, architecture, params, **more)


def _evaluated(certificate):
    """Loss and accuracy as training's own evaluation has them, in float32."""
    task, module = certificate.task, certificate.module()
    data = jax.tree.map(jnp.asarray, task.sample())

    def evaluate(variables):
        if not isinstance(task, LabelledContexts):
            return task.evaluate(module, variables, data)
        outputs = task.outputs(module, variables, data)
        loss_T, correct_T = jax.vmap(metrics.loss_and_correct)(outputs, data.label_T)
        return loss_T.mean(), correct_T.mean()

    return jax.jit(evaluate)(certificate.variables())


@pytest.mark.parametrize(("architecture", "task"), list(small.questions()))
def test_round_trip(architecture, task):
    certificate = drawn(architecture, task, of_weights=1, by="nobody")
    data = certificates.encode(certificate)
    again = certificates.decode(data)
    assert again.head() == certificate.head()
    assert certificates.encode(again) == data


@pytest.mark.parametrize(("architecture", "task"), list(small.every_task()))
def test_the_projects_own_evaluation(architecture, task):
    certificate = drawn(architecture, task, of_weights=1)
    counted = counting.count(certificate, ["float32"])
    n_params, _ = models.count_parameters(certificate.module(), task.context_length)
    assert counted["n_params"] == n_params
    loss, accuracy = _evaluated(certificate)
    np.testing.assert_allclose(counted["loss"], loss, rtol=1e-4, atol=1e-5)
    if "accuracy" in task.measures:
        np.testing.assert_allclose(counted["accuracy"], accuracy, atol=1e-6)
    for name in ("accuracy", "memorized", "bits", "loss"):
        assert (counted[name] is not None) == (name in task.measures)


@pytest.mark.parametrize(
    "params", [None, [1, 2], {1: 0.5}, {"a": "x"}, {"a": {"b": [[1.0], [2.0, 3.0]]}}]
)
def test_what_are_no_weights_is_one_line(params):
    with pytest.raises(UserError) as refused:
        certificates.make(TASK, MLP(d_model=2, d_mlp=3), params)
    assert "\n" not in str(refused.value)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.fixed_dictionaries(
        {"d_model": st.integers(1, 5), "d_mlp": st.integers(0, 9), "n_layers": st.integers(1, 3)}
    ),
    first=st.none() | st.integers(1, 12),
    by=st.none() | st.sampled_from(["me", "Zoë & Co."]),
)
def test_equal_weights_and_specs_have_equal_bytes(seed, sizes, first, by):
    model = MLP(d_head=sizes["d_model"], heads="full", **sizes)
    task = TASK.replace(seed=seed)
    data, same = (certificates.encode(drawn(model, task, first=first, by=by)) for _ in range(2))
    assert data == same
    again = certificates.decode(data)
    assert (again.task, again.architecture) == (task, model)
    assert (again.first, again.by, again.seed) == (first, by, None)
    assert certificates.encode(drawn(model, task, 1, first=first, by=by)) != data


DATA = certificates.encode(drawn(by="me", seed=2, first=7))


def _refused(data):
    """The one clear line about these bytes; None where they are a certificate."""
    try:
        certificates.decode(data)
    except UserError as error:
        line = str(error)
        assert line
        assert line.isprintable()
        assert len(line) < 400
        return line
    return None


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_an_edited_byte_is_refused_or_another_certificate(place, change):
    edited = bytearray(DATA)
    edited[place] ^= change
    if _refused(bytes(edited)) is None:
        assert certificates.digest(bytes(edited)) != certificates.digest(DATA)
        # Only where it says other weights, or is of other specs, is it one.
        found = certificates.encode(certificates.decode(bytes(edited)))
        assert found == bytes(edited)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, len(DATA)).map(lambda n: DATA[:n]),
        st.binary(min_size=1, max_size=9).map(lambda more: DATA + more),
        st.tuples(st.integers(0, 400), st.binary(max_size=60)).map(
            lambda x: DATA[: x[0]] + x[1] + DATA[x[0] + len(x[1]) :]
        ),
    )
)
def test_garbage_is_refused_in_one_line(data):
    if data != DATA and certificates.digest(data) != certificates.digest(DATA):
        line = _refused(data)
        assert line is not None or certificates.encode(certificates.decode(data)) == data


def _rewritten(change, tensors=None):
    """The bytes of a file that says something else."""
    certificate = drawn(seed=2)
    head = certificate.head()
    change(head)
    params = dict(certificate.params) | (tensors or {})
    return safetensors.numpy.save(params, {"memobench": strict_json.canonical(head)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda head: head.pop("task"), "task is missing"),
        (lambda head: head.update(rows=1), "the field 'rows' is unknown"),
        (lambda head: head.update(certificate=2), "certificate=2"),
        (lambda head: head.update(certificate=True), "certificate=True"),
        (lambda head: head.pop("spec_version"), "spec_version is missing"),
        (lambda head: head.update(first=13), "first=13: the task has 12 examples"),
        (lambda head: head.update(first=0), "first=0"),
        (lambda head: head.update(seed=2**32), "seed=4294967296"),
        (lambda head: head.update(by="=cmd"), "by='=cmd'"),
        (lambda head: head.update(by=""), "by=''"),
        (lambda head: head.update(task="associations"), "task='associations' is not the spec"),
        (lambda head: head["task"].update(name="chess"), "task='chess' is unknown"),
        (lambda head: head["task"].update(vocab_size=6), "has shape"),
        (lambda head: head["task"].update(vocab_size=0), "vocab_size=0"),
        (lambda head: head["task"].update(vocab_size=2.5), "vocab_size=2.5"),
        (lambda head: head["task"].update(noise=6), "no field 'noise'"),
        (lambda head: head["task"].update(context_length=2**20), "context_length"),
        (lambda head: head["task"].pop("seed"), "seed is missing"),
        (lambda head: head["architecture"].update(d_mlp=2**24), "has shape"),
        (lambda head: head["architecture"].update(d_mlp="4"), "d_mlp='4'"),
        (lambda head: head["architecture"].update(d_mlp=-1), "d_mlp=-1"),
        (lambda head: head["architecture"].update(activation="none"), "activation='none'"),
        (lambda head: head["architecture"].update(width=3), "no field 'width'"),
        (lambda head: head["architecture"].pop("name"), "architecture=None is unknown"),
        (lambda head: head["architecture"].update(n_layers=2), "is missing"),
    ],
)
def test_other_specs_are_refused(change, says):
    assert says in _refused(_rewritten(change))


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"mlp": np.zeros(3, np.float32)}, "no parameter 'mlp'"),
        ({"unembedding": np.full((5, 3), np.nan, np.float32)}, "not finite"),
        ({"unembedding": np.zeros((5, 3))}, "save it as float32"),
        ({"unembedding": np.zeros((3, 5), np.float32)}, "has shape (3, 5)"),
    ],
)
def test_other_weights_are_refused(tensors, says):
    assert says in _refused(_rewritten(lambda head: None, tensors))


def _of_header(header):
    """The bytes of a file of this header."""
    return len(header).to_bytes(8, "little") + header


HALF = _of_header(rb'{"__metadata__":{"memobench":"\ud800"}}')


@pytest.mark.parametrize(
    "data",
    [
        HALF,
        _of_header(rb'{"__metadata__":{"memobench":"{\"by\":\"\\ud800\"}"}}'),
        _of_header(rb'{"\udfff":{"dtype":"F32"},"__metadata__":{"memobench":"{}"}}'),
    ],
    ids=["metadata", "specs", "parameter"],
)
def test_half_a_character_is_refused_in_one_line(data):
    assert "is not UTF-8" in _refused(data)


@pytest.mark.parametrize(
    "raised",
    [RecursionError("too deep"), MemoryError("full"), KeyError("\ud800\n"), OSError(5, "broken")],
)
@pytest.mark.parametrize("where", ["decode", "count"])
def test_whatever_one_file_raises_the_others_are_counted(
    tmp_path, capsys, monkeypatch, raised, where
):
    good, bad = (certificates.save(drawn(of_weights=i), tmp_path) for i in (1, 2))
    module = {"decode": certificates, "count": counting}[where]
    done = getattr(module, where)

    def failing(what, *more):
        data = what if where == "decode" else certificates.encode(what)
        if data == bad.read_bytes():
            raise raised
        return done(what, *more)

    monkeypatch.setattr(module, where, failing)
    with pytest.raises(UserError) as refused:
        _command("--json", bad, good)
    assert str(refused.value).startswith(f"{bad}: {type(raised).__name__}: ")
    assert str(refused.value).isprintable()
    assert json.loads(capsys.readouterr().out)["file"] == good.name


def test_a_part_counts_its_first_examples_only():
    whole, part = (counting.count(drawn(first=n), ["float32"]) for n in (None, 5))
    all_of_it = counting.count(drawn(first=12), ["float32"])
    assert part["n_examples"] == 5
    assert part["known"] <= whole["known"]
    assert all_of_it["loss"] == whole["loss"]
    data = TASK.sample()
    outputs = counting.outputs(drawn(), drawn().variables(), jax.tree.map(np.asarray, data))
    loss_T, correct_T = TASK.judge(data, outputs)
    np.testing.assert_allclose(part["loss"], loss_T[:5].mean(), rtol=1e-12)
    assert part["known"] == correct_T[:5].sum()
    with pytest.raises(UserError, match="leave first out"):
        drawn(task=Associations(vocab_size=5), first=5)


def test_blocks_change_nothing(monkeypatch):
    whole = counting.count(drawn())
    monkeypatch.setattr(counting, "_MOST_EXAMPLES", 5)
    parts = counting.count(drawn())
    assert parts.keys() == whole.keys()
    for name, value in whole.items():
        assert parts[name] == (pytest.approx(value, rel=1e-12) if type(value) is float else value)


def test_formats_have_their_bytes():
    counted = counting.count(drawn())
    sizes = [x.size for x in drawn().params.values()]
    assert counted["bytes"] == 4 * sum(sizes)
    assert counted["bytes_bfloat16"] == 2 * sum(sizes)
    scales = 4 * sum(-(-size // precision.BLOCK) for size in sizes)
    assert counted["bytes_int8"] == sum(sizes) + scales
    assert counted["bytes_int4"] == sum(-(-size // 2) for size in sizes) + scales
    for kind in ("", "_bfloat16", "_int8", "_int4"):
        bits = counted[f"bits{kind}"]
        assert counted[f"bits_per_byte{kind}"] == bits / counted[f"bytes{kind}"]


def test_only_what_a_format_overflows_is_not_counted():
    """The largest float32 is no bfloat16; nothing that all formats hold changes."""
    whole = drawn()
    params = {name: x.copy() for name, x in whole.params.items()}
    params["compress"][0, 0] = np.finfo(np.float32).max
    before, counted = map(counting.count, (whole, dataclasses.replace(whole, params=params)))
    lost = {name for name, x in counted.items() if x is None and before[name] is not None}
    of_format = {name for name in counted if name.endswith("_bfloat16")}
    assert lost == of_format - {"bytes_bfloat16"}
    assert counted["bytes_bfloat16"] == counted["bytes"] / 2
    (entry,) = entries.build([], [entries.counted() | {"bits_per_byte_int8": None}]).to_dict(
        "records"
    )
    assert entry["bits_per_byte"] == entries.counted()["bits_per_byte"]


def _command(*arguments, name="certify"):
    cli.find()  # Flags that are defined inside the block are gone after it.
    with flagsaver.flagsaver():
        command, names = cli.parse(["memobench", name, *map(str, arguments)])
        command.run(names)


def test_command(tmp_path, capsys):
    path = certificates.save(drawn(by="me"), tmp_path)
    assert certificates.save(drawn(by="me"), tmp_path) == path
    _command("--json", path)
    row = json.loads(capsys.readouterr().out)
    assert row == memobench.certify(path)
    assert row["digest"].startswith(re.fullmatch(r"mlp-(\w{16})", path.stem)[1])

    _command(path)
    head, line = capsys.readouterr().out.splitlines()
    assert "certified bits / parameter" in head
    shown = board.COLUMNS["bits_per_byte"].text(board.summarize_weights([row]))
    assert line.split()[-1] == shown
    assert f"{row['bits_per_parameter']:.3f}" in line

    with pytest.raises(UserError, match=r"memobench certify .*/\*\.safetensors"):
        _command(path.parent, name="verify")

    renamed = path.rename(path.with_name("mlp-0123456789abcdef.safetensors"))
    with pytest.raises(UserError) as refused:
        _command(renamed, tmp_path / "none")
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert "its name is not that of its content" in lines[0]
    assert "cannot be read: No such file" in lines[1]


METHOD = Training(n_batches=8, epochs=4).exact()
RUNS = [
    memobench.Run(task=TASK, architecture=MODEL.replace(d_mlp=width), method=METHOD, seed=width)
    for width in (2, 4)
]
ANNEALED = memobench.Run(
    task=LabelledContexts(n_examples=6, n_classes=3, context_length=2, input_dim=3),
    architecture=QueryAttention(d_model=3, d_head=2),
    method=Annealing(steps=8, evaluate_every=4, batch_size=3),
)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    memobench.run([*RUNS, ANNEALED], results=folder, progress=False)
    return folder


def test_finished_runs_keep_their_weights(kept):
    rows = results.load_rows(kept)
    for run in (*RUNS, ANNEALED):
        variables = memobench.weights(run, results=kept)
        inputs = run.task.inputs(jax.tree.map(jnp.asarray, run.task.sample()), jnp.int32(0))
        assert run.module().apply(variables, *inputs).shape == (run.task.n_choices,)
        path = results.weights_path(kept, run.run_id)
        certificate, digest = certificates.read(path)
        assert rows[run.run_id]["weights_digest"] == digest
        assert (certificate.task, certificate.seed) == (run.task, run.seed)
    found = verify.verify(kept, recompute=True)
    assert (found.runs, found.errors) == (3, ())
    with pytest.raises(UserError, match="holds no weights of run 0123: it is not done"):
        memobench.weights("0123", results=kept)


def test_weights_that_are_not_those_of_the_row_are_not_handed_out(kept, tmp_path):
    """The end of a file was never written, or it is another run's; its folder is made anew."""
    folder = shutil.copytree(kept, tmp_path / "kept")
    path, other = (results.weights_path(folder, run.run_id) for run in RUNS[:2])
    whole = path.read_bytes()
    for content in (whole[:-64] + bytes(64), other.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is not what was kept: the row of its run names"):
            memobench.weights(RUNS[0].run_id, results=folder)
    path.write_bytes(whole)
    assert memobench.weights(RUNS[0], results=folder)
    for shard in results.shard_paths(folder):
        shard.unlink()
    memobench.run(RUNS[:1], results=folder, progress=False)
    assert memobench.weights(RUNS[0].run_id, results=folder)


def test_weights_are_left_out_silently_only_if_they_are_not_finite(caplog):
    params = drawn().params
    infinite = {name: np.full_like(x, np.inf) for name, x in params.items()}
    other = params | {"unembedding": np.zeros((5, 4), np.float32)}
    runs = [RUNS[1]] * 4
    kept = (Weights(params), None, Weights(infinite), Weights(other))
    result = PackResult.of_ends(np.ones(4), np.ones(4), compile_seconds=0, weights=kept)
    found = list(worker.weights_of(packing.make_pack(runs), result))
    assert [x is None for x in found] == [False, True, True, True]
    (line,) = caplog.messages
    assert f"weights of run {runs[0].run_id} are not kept: the parameter unembedding has" in line


def test_a_callers_precision_changes_no_count(tmp_path):
    task = Distributions(vocab_size=5, n_sequences=12, conditional="uniform", n_next=2)
    memobench.run([memobench.Run(task=task, architecture=MODEL, method=METHOD)], tmp_path, False)
    with jax.enable_x64(True):
        assert not verify.verify(tmp_path, recompute=True).errors


def test_outputs_beyond_memory_are_refused_in_one_line():
    task = Distributions(vocab_size=2**20, n_sequences=2**20, conditional="uniform", n_next=1)
    made = drawn(MLP(d_model=1, d_head=1, d_mlp=1), task)
    with pytest.raises(UserError, match="too many outputs to be counted: 1,099,511,627,776"):
        counting.count(made)
    # Of facts a model says the answers of all relations, and each is of its own relation's.
    facts = FactualRecall(
        n_subjects=2**10, n_relations=2**10, n_answers=2, n_noise=1, context_length=4
    )
    made = drawn(RecallTransformer(d_model=2, d_head=2, d_mlp=2), facts)
    with pytest.raises(UserError, match="too many outputs to be counted: 4,297,064,448"):
        counting.count(made)


def test_verify_notices_weights_that_are_others_or_gone(kept, tmp_path):
    folder = shutil.copytree(kept, tmp_path / "kept")
    first, second = (results.weights_path(folder, run.run_id) for run in RUNS)
    first.unlink()
    (noted,) = (line for line in verify.verify(folder).notes if "deleted" in line)
    assert RUNS[0].run_id in noted
    certificate = certificates.load(second)
    params = {name: 2 * x for name, x in certificate.params.items()}
    second.write_bytes(certificates.encode(dataclasses.replace(certificate, params=params)))
    (error,) = verify.verify(folder).errors
    assert "the row or the file was changed" in error
    second.write_bytes(b"?")
    found = verify.verify(folder)
    (error,) = found.errors
    assert "is not a certificate" in error
    assert "nothing could check the measures of 2 runs" in found.summary


def _reseal_all(folder, change):
    """Changes all rows of a folder, and the digests of their shards."""
    for path in results.shard_paths(folder):
        small.reseal(path, lambda shard: [change(row) for row in shard["rows"]])


def _of_weights(found):
    """Notes on weights; others are on the checkout."""
    return [line for line in found.notes if "weights" in line]


@pytest.mark.parametrize(
    "claim", [lambda row: row.pop("weights_digest"), lambda row: row.update(weights_digest=None)]
)
def test_weights_that_a_row_does_not_name_count_all_the_same(kept, tmp_path, claim):
    folder = shutil.copytree(kept, tmp_path / "kept")
    _reseal_all(folder, claim)
    errors = verify.verify(folder).errors
    assert len(errors) == 3
    assert all("weights_digest=None is not that of" in error for error in errors)


def test_rows_without_weights_and_weights_without_rows_are_named(kept, tmp_path):
    folder = shutil.copytree(kept, tmp_path / "kept")
    found = verify.verify(folder, recompute=True)
    assert (found.errors, _of_weights(found)) == ((), [])
    assert found.summary.endswith("; nothing could check the measures of 0 runs")
    path = results.weights_path(folder, RUNS[0].run_id)
    path.rename(path.with_stem("0" * 16))
    _reseal_all(
        folder, lambda row: row.update(weights_digest=None) if row["run_id"] == path.stem else None
    )
    found = verify.verify(folder, recompute=True)
    without, no_run = _of_weights(found)
    assert found.errors == ()
    assert f"1 run without weights, though their method keeps them: {path.stem}" in without
    assert f"1 file among weights of no run that is here: {'0' * 16}.safetensors" in no_run
    assert found.summary.endswith("; nothing could check the measures of 1 run")
    (folder / "weights" / "\udcff\n").write_bytes(b"?")
    assert all(line.isprintable() for line in verify.verify(folder).notes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"seed": 7}, "of another run"), ({"first": 1}, "of the first 1 examples")],
)
def test_weights_of_other_runs_and_of_a_part_are_no_evidence(kept, tmp_path, changes, told):
    """One example that is known has the accuracy of all."""
    folder = shutil.copytree(kept, tmp_path / "kept")
    path = results.weights_path(folder, RUNS[0].run_id)
    data = certificates.encode(dataclasses.replace(certificates.load(path), **changes))
    path.write_bytes(data)
    digest = certificates.digest(data)
    _reseal_all(
        folder, lambda row: row["run_id"] == path.stem and row.update(weights_digest=digest)
    )
    (error,) = verify.verify(folder, recompute=True).errors
    assert told in error


@pytest.mark.parametrize("name", ["{}-0", "0{}"])
@pytest.mark.parametrize("digest", [None, 64 * "0"])
def test_a_forged_row_beside_that_of_the_weights_is_named_and_not_read(
    kept, tmp_path, name, digest
):
    folder = shutil.copytree(kept, tmp_path / "kept")
    before = results.load_rows(folder)
    for path in results.shard_paths(folder):
        forged = shutil.copy(path, path.with_stem(name.format(path.stem)))
        small.reseal(
            forged,
            lambda shard: [
                row.update(accuracy=1.0, weights_digest=digest) for row in shard["rows"]
            ],
        )
    assert results.load_rows(folder) == before
    assert memobench.run(RUNS, folder, progress=False)["accuracy"].tolist() == [
        before[run.run_id]["accuracy"] for run in RUNS
    ]
    found = verify.verify(folder)
    assert found.errors == ()
    differ, other = _of_weights(found)
    assert differ.startswith("3 runs with rows that differ by more than rounding")
    assert other.startswith("3 runs of which another row's weights are kept: ")


def test_rows_that_round_otherwise_are_sound_beside_one_that_names_the_weights(kept, tmp_path):
    """Such as two machines' of the same run, in folders that are merged."""
    folder = shutil.copytree(kept, tmp_path / "kept")
    for path in results.shard_paths(folder):
        other = shutil.copy(path, path.with_stem(f"0{path.stem}"))
        small.reseal(
            other, lambda shard: [row.update(weights_digest=64 * "0") for row in shard["rows"]]
        )
    assert verify.verify(folder).errors == ()


def test_of_rows_without_weights_the_first_name_counts(kept, tmp_path):
    """STEM.json is before STEM-0.json."""
    folder = shutil.copytree(kept, tmp_path / "kept")
    shutil.rmtree(folder / "weights")
    before = results.load_rows(folder)
    for path in results.shard_paths(folder):
        forged = shutil.copy(path, path.with_stem(f"{path.stem}-0"))
        small.reseal(forged, lambda shard: [row.update(accuracy=1.0) for row in shard["rows"]])
    assert results.load_rows(folder) == before
    found = verify.verify(folder)
    assert found.errors == ()
    assert any("3 runs with rows that differ by more" in note for note in found.notes)


def test_no_exception_of_one_file_or_row_keeps_verify_from_the_others(kept, tmp_path, monkeypatch):
    folder = shutil.copytree(kept, tmp_path / "kept")
    results.weights_path(folder, RUNS[0].run_id).write_bytes(HALF)

    def failing(*_):
        raise ZeroDivisionError("\ud800")

    monkeypatch.setattr(verify.theorems, "violations", failing)
    monkeypatch.setattr(verify, "check_weights", failing)
    errors = verify.verify(folder, recompute=True).errors
    assert len(errors) == 4
    assert all(line.isprintable() for line in errors)
    assert sum("is not UTF-8" in line for line in errors) == 1
    assert sum("ZeroDivisionError" in line for line in errors) == 3


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("accuracy", lambda accuracy: (accuracy + 0.5) % 1),
        ("memorized", lambda memorized: memorized + 3),
        ("bits", lambda bits: bits + 1),
        ("loss", lambda loss: 0.9 * loss),
    ],
)
def test_verify_counts_again_whatever_digest_a_row_has(kept, tmp_path, name, edit):
    folder = shutil.copytree(kept, tmp_path / "kept")
    _reseal_all(folder, lambda row: row.update({name: edit(row[name])}))
    assert verify.verify(folder).errors == ()
    errors = verify.verify(folder, recompute=True).errors
    assert len(errors) == 3
    for error in errors:
        assert f": {name}=" in error
        assert "but the weights that were kept have" in error
