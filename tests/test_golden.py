"""Trained bits and programs are those of golden/shards.json: two tiny runs of every method.

For changes that move or rename code and must leave what is trained as it is. Rows hold measures and
digests of weights, in an instruction set that every CPU of today has; programs are hashes of what
JAX lowers for the engine, without names. What is meant to change is made again, in minutes:

    python -m tests.test_golden tests/golden/shards.json

`python -m tests.test_golden --here` compares numbers alone on the device at hand, a GPU say.
Bits are compared on the kind of CPU and with the versions of libraries that made them, elsewhere
numbers to 1e-5 (those that rows round, to a unit of their last place). There a file made before a
change, at another path, tells exactly what the change did:
`GOLDEN=/tmp/shards.json python -m pytest -m golden tests/test_golden.py`.
"""

import hashlib
import importlib.metadata
import json
import math
import multiprocessing
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

import memobench as mb
from memobench.constructions.base import Construction
from memobench.core.architecture import Architecture
from memobench.core.cells import spec_columns
from memobench.core.optimizer import Optimizer
from memobench.core.run import Method
from memobench.core.task import Task
from memobench.engine import Signature, devices, to_compile
from memobench.methods.capacity_policy import LISTED_DIGITS
from memobench.planner.packing import make_pack, programs
from memobench.store.results import load_rows
from memobench.store.rows import PROVENANCE

pytestmark = pytest.mark.golden
_KEPT = pathlib.Path(__file__).with_name("golden") / "shards.json"
KEPT = pathlib.Path(os.environ.get("GOLDEN", _KEPT))
# XLA, the libraries of linear algebra and NumPy each choose by the CPU; all of them look here once.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "MEMOBENCH_KERNELS": "0",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL "
    "AVX512_SPR X86_V4",
}
LIBRARIES = ("jax", "jaxlib", "numpy", "scipy")

PAIRS = mb.Associations(vocab_size=5, n_sequences=25)
SINGLES = mb.Associations(vocab_size=4, context_length=1)
SEVERAL = mb.Distributions(vocab_size=4, conditional="uniform", n_next=2)
CONTEXTS = mb.LabelledContexts(n_examples=6, context_length=3, n_classes=3, input_dim=4)
FACTS = mb.FactualRecall(n_subjects=3, n_relations=2, n_answers=2, n_noise=4, context_length=5)
SEQUENCES = mb.Sequences(vocab_size=5, context_length=3, n_sequences=5)
SIZES = {"d_model": 4, "d_head": 4, "n_heads": 2}
ATTENTION, MLP = mb.AttentionOnly(**SIZES | {"d_head": 3}), mb.MLP(**SIZES, d_mlp=5)
LINEAR, GATED = mb.LinearMemory(d_model=4), mb.MLPMemory(d_model=4, d_mlp=6, activation="bilinear")
CLASSIFIER, RELU = mb.QueryAttention(**SIZES), MLP.replace(activation="relu")
PUBLISHED = mb.Training(batch_size=8, n_batches=4, epochs=3)
EXACT = PUBLISHED.exact()
LEVEL = PUBLISHED.replace(final_learning_rate=PUBLISHED.learning_rate)
ANNEALED = mb.Annealing(steps=12, evaluate_every=4, batch_size=4)
SEARCH = mb.Search(training=EXACT.replace(learning_rate=0.1), doublings=1)
CAPACITY = mb.Capacity(
    training=EXACT.replace(epochs=4, learning_rate=0.03),
    rate_factors=(1.0, 3.0),
    **{"tables": 2, "pilots": 2, "rungs": 2, "threshold_trials": 2, "trial_pilots": 1},
)
PEAK = mb.Peak(training=CAPACITY.training, shares=(0.5, 1.0), rate_factors=(1.0, 3.0), tables=2)
NEAREST = {"solve": "least_squares"}
CASES = {
    "published": (PAIRS, ATTENTION, PUBLISHED),
    "passes": (PAIRS, ATTENTION, PUBLISHED.replace(protocol="passes", batch_size=5, n_batches=5)),
    "exact": (PAIRS, MLP.replace(heads="full", n_layers=2), EXACT),
    "distributions": (SEVERAL, mb.SequenceEncoder(d_model=3), EXACT.replace(optimizer=mb.SGD())),
    "bijection": (
        mb.Bijection(vocab_size=6),
        GATED,
        EXACT.replace(optimizer=mb.AdamW(clip=1.0), schedule=mb.CosineSchedule(), warmup=0.5),
    ),
    "facts": (FACTS, mb.RecallTransformer(**SIZES, d_mlp=5), PUBLISHED.replace(trained="memory")),
    "gpt": (SEQUENCES, mb.GPT(**SIZES, d_mlp=5), LEVEL.replace(optimizer=mb.ScheduleFreeAdamW())),
    "modern": (
        mb.InContextRecall(vocab_size=6, n_pairs=2),
        mb.Modern(**SIZES, d_mlp=5),
        PUBLISHED.replace(optimizer=mb.Muon(), schedule=mb.WSDSchedule(decay_share=0.5)),
    ),
    "experts": (
        PAIRS,
        mb.MixtureOfExperts(**SIZES, d_mlp=5, n_experts=3),
        EXACT.replace(optimizer=mb.Lion()),
    ),
    "product keys": (PAIRS, mb.ProductKeyMemory(**SIZES, d_key=2, n_keys=3), EXACT),
    "int4": (PAIRS, MLP, EXACT.replace(precision="int4")),
    "fine-tuned": (
        PAIRS,
        MLP,
        EXACT.replace(start=mb.RandomFeatures(**NEAREST), trained="read_out"),
    ),
    "checked": (PAIRS, ATTENTION, mb.Checked(training=PUBLISHED, evaluate_every=4)),
    "annealed": (CONTEXTS, CLASSIFIER, ANNEALED),
    "searched": (PAIRS, ATTENTION, SEARCH),
    "capacity": (PAIRS, MLP, CAPACITY),
    "peak": (PAIRS, MLP, PEAK),
    "optimised": (
        SEVERAL,
        mb.SequenceEncoder(d_model=2),
        mb.Optimum(starts=4, adam_steps=20, polished=2, steps=10),
    ),
    "bubeck": (PAIRS.replace(n_sequences=6), RELU.replace(d_mlp=12), mb.Bubeck2020()),
    "dana": (PAIRS, mb.AttentionOnly(**SIZES, heads="full"), mb.Dana2025(n_aimed=5)),
    "proposition 3": (PAIRS, mb.SequenceEncoder(d_model=4), mb.Proposition3()),
    "random features": (PAIRS, RELU, mb.RandomFeatures(n_aimed=3)),
    "mahdavi": (CONTEXTS, CLASSIFIER, mb.Mahdavi2024(n_aimed=2)),
    "hebbian": (SINGLES, GATED, mb.Hebbian(**NEAREST)),
    "whitened": (SINGLES, GATED, mb.HebbianWhitened()),
    "data-dependent": (SINGLES, GATED, mb.HebbianDataDependent()),
    "ntk": (SINGLES, GATED.replace(activation="reglu", tied=True), mb.NTK(**NEAREST)),
    "least squares": (SINGLES, LINEAR, mb.LinearLeastSquares(weights="int8")),
    "outer products": (SINGLES, LINEAR, mb.OuterProducts(**NEAREST)),
    "gradient step": (SINGLES, LINEAR, mb.GradientStep()),
    "muon step": (SINGLES, LINEAR, mb.MuonStep()),
}


def make_runs(name):
    """The runs of a case: seeds 0 and 1."""
    task, architecture, method = CASES[name]
    return [
        mb.Run(task=task, architecture=architecture, method=method, seed=seed) for seed in (0, 1)
    ]


def make_rows(name):
    """What the runs measure, and digests of the weights that they keep, by their ids."""
    with tempfile.TemporaryDirectory() as folder:
        mb.run(make_runs(name), results=folder, progress=False)
        rows = load_rows(folder)
    besides = {*spec_columns(), *PROVENANCE, "seconds"}
    return {
        run_id: {key: x for key, x in row.items() if key not in besides and x is not None}
        for run_id, row in sorted(rows.items())
    }


def hash_programs(name):
    """Hashes of what the engine compiles for the runs on each platform, by the part's name."""
    found = {}
    for platform in ("cpu", "cuda", "tpu"):
        pack = make_pack(make_runs(name), platform=platform.replace("cuda", "gpu"))
        for program in programs(pack):
            if isinstance(program[0], Signature):
                for part_name, part in to_compile(*program).items():
                    jitted = devices.jit(part.function, part.specs, donate_argnums=part.donate)
                    traced = jitted.trace(*part.arguments)
                    text = traced.lower(lowering_platforms=(platform,)).as_text()
                    found[f"{part_name} {platform}"] = _hash(_without_names(text))
    return found


def _without_names(text):
    """A lowered program but for what its functions, arguments and results are called in Python."""
    text = re.sub(r'jax\.result_info = "[^"]*"', "", text)
    names = ["@" + name for name in re.findall(r"func\.func \w+ @(\w+)", text)]
    order = {name: f"@f{i}" for i, name in enumerate(names)}
    text = re.sub(r"@\w+", lambda found: order.get(found[0], found[0]), text)
    return re.sub(r"module @\w+", "module", text)


def _hash(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _describe_cpu():
    """A hash of what the kernel says of the first processor's model and its instructions."""
    info = pathlib.Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    return _hash(str(re.findall(r"^(?:model name|flags)\s*: (.*)", text, re.MULTILINE)[:2]))


def make(path):
    """Writes all that is compared, by the name of a case, and what it depends on."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES}
    found["cpu"] = _describe_cpu()
    for name in CASES:
        programs = hash_programs(name)
        found[name] = {"rows": make_rows(name)} | ({"programs": programs} if programs else {})
    lines = [f"{json.dumps(key)}: {json.dumps(x)}" for key, x in found.items()]
    pathlib.Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What was kept, and what is made now, in a process of the same instruction set."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    command = [sys.executable, "-m", "tests.test_golden", str(path)]
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(KEPT.read_text()), json.loads(path.read_text())


def test_every_kind_has_a_case():
    known = {type(spec) for case in CASES.values() for spec in case}
    known |= {type(getattr(method, "optimizer", None)) for *_, method in CASES.values()}
    families = (Method, Construction, Task, Architecture, Optimizer)
    missing = {kind for family in families for kind in family.kinds().values()} - known
    # Every theorem is a kind of it.
    assert missing <= {Construction}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_that_were_kept(name, both):
    kept, made = both
    assert _find_differences(made[name]["rows"], kept[name]["rows"]) == []


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_that_were_kept(name, both):
    kept, made = both
    others = [key for key in (*LIBRARIES, "cpu") if kept[key] != made[key]]
    if others:
        pytest.skip(f"{KEPT} was made with another {' and '.join(others)}")
    assert made[name]["rows"] == kept[name]["rows"]


@pytest.mark.parametrize("name", CASES)
def test_programs_are_those_that_were_kept(name, both):
    kept, made = both
    if kept["jax"] != made["jax"]:
        pytest.skip(f"{KEPT} is of JAX {kept['jax']}, which lowers other programs")
    assert made[name].get("programs") == kept[name].get("programs")


def _find_differences(made, kept, place=""):
    """The places where two rows differ by more than rounding, digests apart."""
    if place.endswith("weights_digest"):
        return []
    if isinstance(made, dict | list) and type(made) is type(kept) and len(made) == len(kept):
        keys = kept if isinstance(kept, dict) else range(len(kept))
        if isinstance(kept, dict) and made.keys() != kept.keys():
            return [place]
        nested = (_find_differences(made[key], kept[key], f"{place}/{key}") for key in keys)
        return [x for found in nested for x in found]
    if isinstance(made, float) and isinstance(kept, float):
        # A number that rows round may fall on either side: a unit of its last place.
        listed = round(kept, LISTED_DIGITS) == kept
        tolerance = 1.01 * 10**-LISTED_DIGITS if listed else 1e-5
        return [] if math.isclose(made, kept, rel_tol=1e-5, abs_tol=tolerance) else [place]
    return [] if made == kept and type(made) is type(kept) else [place]


def find_differences_here():
    """The places where what this device makes, whichever it is, differs from what was kept."""
    kept = json.loads(KEPT.read_text())
    # Most of the time goes to compiling, a case after another.
    n_processes = max(1, min(8, (os.cpu_count() or 1) // 2))
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool:
        made = pool.map(make_rows, CASES, chunksize=1)
    cases = zip(CASES, made, strict=True)
    return [x for name, rows in cases for x in _find_differences(rows, kept[name]["rows"], name)]


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        # Of a GPU each of them takes what it needs.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        sys.exit("\n".join(find_differences_here()) or 0)
    if any(os.environ.get(key) != value for key, value in ENVIRONMENT.items()):
        command = [sys.executable, "-m", "tests.test_golden", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | ENVIRONMENT)
    make(sys.argv[1])
