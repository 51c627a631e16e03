"""Kernels train as XLA does, on this CPU; what else is known of GPUs."""

import dataclasses
import pathlib
import subprocess
import types

import jax
import numpy as np
import pytest

import memobench as mb
from memobench import engine
from memobench.engine import compile_program, compiling, cplusplus, cuda, resident
from memobench.models.transformer import Transformer
from memobench.optimizers.adam import Adam
from memobench.planner import packing

EXACT = mb.Training(epochs=2).exact()
MUON = EXACT.replace(optimizer=mb.Muon(weight_decay=0.1))
EVERY = EXACT.replace(optimizer=mb.Muon(orthogonal="all", rms=None, nesterov=False, adam_rate=0.5))
BATCHES = mb.Training(batch_size=32, n_batches=64, epochs=2)
NARROW = mb.AttentionOnly(d_model=5, d_head=2, n_heads=7, heads="full")
NEURONS = mb.MLP(d_model=4, d_head=4, n_heads=1, d_mlp=19, heads="full")
WIDE = mb.AttentionOnly(d_model=6, d_head=6, n_heads=2)
COMPRESSED = mb.MLP(d_model=7, d_head=3, n_heads=4, d_mlp=5)
BOTH = mb.MLP(d_model=6, d_head=3, n_heads=2, d_mlp=3, heads="full", activation="relu")
DEEP = COMPRESSED.replace(n_layers=2, n_heads=5)
LISTED = mb.Associations(vocab_size=20, n_sequences=300)
THREE = mb.Associations(vocab_size=8, context_length=3, n_sequences=270)
ZIPF = THREE.replace(zipf_exponent=1.0)
SEVEN = mb.Associations(vocab_size=8, context_length=7, n_sequences=300)
PEAK = mb.Peak(
    training=EXACT.replace(learning_rate=0.003),
    shares=(0.4, 0.9, 1.0),
    rate_factors=(1.0, 1.5),
    tables=2,
)

compiler = pytest.mark.skipif(cplusplus.find_compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def as_by_default(monkeypatch):
    """Other tests are of XLA's steps; a compiler that optimizes takes three times as long."""
    monkeypatch.delenv(resident.VARIABLE)
    monkeypatch.setattr(cplusplus, "FLAGS", ("-O1", *cplusplus.FLAGS[1:]))


def train(runs):
    """loss_RxC and accuracy_RxC of the first chunk, and the state after the second."""
    policy = runs[0].method.policy(packing.make_pack(runs), None)
    curves = []
    policy.record = lambda jobs, step_R, curve: curves.append(jax.device_get(curve))
    compile_program.cache_clear()
    lanes = engine.Lanes(policy)
    lanes.fill()
    # A chunk is recorded once the next has begun.
    for _ in range(2):
        lanes.train()
    compile_program.cache_clear()
    return curves[0], jax.device_get(lanes.state)


# What a compiler is told: of this CPU's vectors, and of others'.
TARGETS = {"native": cplusplus.TARGETS, "AVX2": (("-mavx2", "-mfma"),), "any": ((),)}
CPU = pathlib.Path("/proc/cpuinfo")
avx2 = pytest.mark.skipif(
    not (CPU.exists() and {"avx2", "fma"} <= set(CPU.read_text().split())), reason="needs AVX2"
)


@compiler
@pytest.mark.parametrize(
    ("task", "architecture", "method", "flags"),
    [
        (mb.Associations(vocab_size=17), BOTH, EXACT, "native"),
        pytest.param(LISTED, NEURONS, PEAK, "native", marks=pytest.mark.accelerators),
        pytest.param(LISTED, BOTH, MUON, "native", marks=pytest.mark.accelerators),
        pytest.param(LISTED, NARROW, EVERY, "native", marks=pytest.mark.accelerators),
        pytest.param(LISTED, WIDE, BATCHES, "native", marks=pytest.mark.accelerators),
        # More matrices than vectors have places.
        pytest.param(ZIPF, DEEP, MUON, "any", marks=pytest.mark.accelerators),
        pytest.param(
            LISTED, NEURONS.replace(n_layers=2), EXACT, "native", marks=pytest.mark.accelerators
        ),
        pytest.param(
            SEVEN, NARROW.replace(n_layers=2), BATCHES, "native", marks=pytest.mark.accelerators
        ),
        pytest.param(ZIPF, COMPRESSED, EXACT, "native", marks=pytest.mark.accelerators),
        pytest.param(ZIPF, BOTH, BATCHES, "native", marks=pytest.mark.accelerators),
        pytest.param(SEVEN, NARROW, BATCHES, "native", marks=pytest.mark.accelerators),
        pytest.param(LISTED, NARROW, BATCHES, "any", marks=pytest.mark.accelerators),
        pytest.param(LISTED, COMPRESSED, EXACT, "AVX2", marks=[avx2, pytest.mark.accelerators]),
    ],
)
def test_a_kernel_trains_as_xla(task, architecture, method, flags, monkeypatch):
    if flags == "native":
        monkeypatch.setattr(cplusplus, "FLAGS", ("-O3", *cplusplus.FLAGS[1:]))
    monkeypatch.setattr(cplusplus, "TARGETS", TARGETS[flags])
    runs = [mb.Run(task=task, architecture=architecture, method=method, seed=s) for s in (0, 1)]
    (loss_RxC, accuracy_RxC), _ = train(runs)
    monkeypatch.setenv(resident.VARIABLE, "0")
    (expected_RxC, known_RxC), _ = train(runs)
    assert loss_RxC.shape[1] == 64
    assert (loss_RxC[:, -16:].mean(axis=1) < loss_RxC[:, :16].mean(axis=1)).all()
    # Where the input of a relu is zero but for rounding, one of both may count its example's slope.
    rtol = 2e-5 if getattr(architecture, "activation", "") == "relu" else 1e-5
    np.testing.assert_allclose(loss_RxC, expected_RxC, rtol=rtol)
    np.testing.assert_allclose(accuracy_RxC, known_RxC, atol=1.01 / 32)


@compiler
@pytest.mark.accelerators
def test_a_kernel_of_padded_models_trains_each_as_alone():
    deep = [x.replace(n_layers=2) for x in (NARROW, BOTH.replace(activation="gelu"))]
    runs = [mb.Run(task=LISTED, architecture=x, method=MUON) for x in deep]
    (loss_RxC, _), state = train(runs)
    # Equal inputs give equal bits, whatever else trains.
    (again_RxC, _), _ = train(runs[::-1])
    np.testing.assert_array_equal(again_RxC[::-1], loss_RxC)
    for i, run in enumerate(runs):
        (alone_RxC, _), _ = train([run])
        np.testing.assert_allclose(loss_RxC[i], alone_RxC[0], rtol=1e-5)
    params = state.variables["params"]
    assert not np.any(params["layer0_query"][1][2:])
    assert not np.any(params["layer0_mlp_in"][0])


def test_a_cpu_without_a_compiler_or_with_one_that_fails_is_left_to_xla(monkeypatch, caplog):
    monkeypatch.setattr(cplusplus, "find_compiler", lambda: None)
    assert resident.find_chunk(signature_of(EXACT)) is None
    assert not caplog.text
    monkeypatch.setattr(cplusplus, "find_compiler", lambda: "false")
    assert resident.find_chunk(signature_of(EXACT)) is None
    assert "a kernel cannot be used: false: status 1" in caplog.text


def test_a_compiler_that_cannot_compile_kernels_is_as_none(tmp_path, monkeypatch, caplog):
    """Plans would otherwise take the kernel's padding, which XLA pays for."""
    old = tmp_path / "c++"
    old.write_text("#!/bin/sh\necho 'error: no __builtin_convertvector' >&2\nexit 1\n")
    old.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", str(old))
    cplusplus.find_compiler.cache_clear()
    try:
        assert cplusplus.find_compiler() is None
        assert resident.find_used(signature_of(EXACT)) is None
    finally:
        cplusplus.find_compiler.cache_clear()
    assert caplog.text.count("no compiler can be used") == 1
    assert "error: no __builtin_convertvector" in caplog.text


@compiler
@pytest.mark.accelerators
@pytest.mark.parametrize(
    ("task", "architecture", "method"),
    [
        (LISTED, NARROW, EXACT),
        (LISTED, BOTH, MUON),
        (LISTED, WIDE, EXACT),
        (ZIPF, NEURONS, EXACT),
        (SEVEN, COMPRESSED, EVERY),
        (ZIPF, DEEP, MUON),
        (LISTED, NARROW.replace(n_layers=2), EXACT),
    ],
)
def test_threads_of_a_gpu_agree_on_what_they_share(tmp_path, task, architecture, method):
    """Threads of this CPU are those of a block, and a sanitizer sees who waits for whom."""
    run = mb.Run(task=task, architecture=architecture, method=method)
    signature = packing.make_pack([run]).signature
    kernel = resident.find_kernel(signature)
    words = [f"-D{x}={v}" for x, v in resident.defines(kernel, signature).items()]
    words += [f'-DSOURCE="{kernel.source}"', "-DB=64", "-std=c++17", "-O1", "-w"]

    def build(name, *more):
        program = tmp_path / name
        source = pathlib.Path(__file__).with_name("block.cpp")
        compiler = cplusplus.find_compiler()
        subprocess.run([compiler, *words, *more, source, "-o", program, "-pthread"], check=True)
        return program

    def execute(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    # A sanitizer knows where memory lies only if it is not moved.
    found = execute("setarch", "-R", build("block", "-DBLOCK", "-fsanitize=thread"))
    expected = execute(build("lane"))
    np.testing.assert_allclose([*map(float, found)], [*map(float, expected)], rtol=1e-6)


@compiler
def test_what_was_compiled_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(cplusplus, "FLAGS", ("-O0", *cplusplus.FLAGS[1:]))
    monkeypatch.setattr(compiling, "kept_folder", lambda: tmp_path)
    kernel = resident.find_kernel(signature_of(EXACT))
    constants = resident.defines(kernel, signature_of(EXACT))
    cplusplus._load.cache_clear()
    assert cplusplus.find_launch(kernel.source, constants)
    assert [x.suffix for x in tmp_path.iterdir()] == [".so"]
    cplusplus._load.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(cplusplus, "_compile", None)
        assert cplusplus.find_launch(kernel.source, constants)
    # Damaged, it is compiled again; where nothing can be written, it is not kept.
    (library,) = tmp_path.iterdir()
    damaged = tmp_path / "damaged" / library.name
    damaged.parent.mkdir()
    damaged.write_bytes(b"")
    monkeypatch.setattr(compiling, "kept_folder", lambda: damaged.parent)
    cplusplus._load.cache_clear()
    assert cplusplus.find_launch(kernel.source, constants)
    assert damaged.stat().st_size == library.stat().st_size
    monkeypatch.setattr(compiling, "kept_folder", lambda: tmp_path / "gone")
    cplusplus._load.cache_clear()
    assert cplusplus.find_launch(kernel.source, constants)


OTHERS = {
    "thousands of neurons": (LISTED, NEURONS.replace(d_mlp=9000), EXACT),
    "seventeen dimensions": (LISTED, NARROW.replace(d_model=17), EXACT),
    "three layers": (LISTED, NARROW.replace(n_layers=3), EXACT),
    "nine tokens": (mb.Associations(vocab_size=5, context_length=9), NARROW, EXACT),
    "one token": (mb.Associations(vocab_size=5, context_length=1), NARROW, EXACT),
    "another model": (LISTED, mb.Modern(d_model=4, d_head=2, n_heads=2, d_mlp=3), EXACT),
    "another optimiser": (LISTED, NARROW, EXACT.replace(optimizer=mb.Lion())),
    "clipping": (LISTED, NARROW, EXACT.replace(optimizer=mb.Adam(clip=1.0))),
    "several next tokens": (
        mb.Distributions(vocab_size=4, conditional="uniform", n_next=2),
        NARROW,
        EXACT,
    ),
    "part of the weights": (LISTED, NEURONS, EXACT.replace(trained="read_out")),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_steps_are_left_to_xla(name):
    task, architecture, method = OTHERS[name]
    run = mb.Run(task=task, architecture=architecture, method=method)
    assert resident.find_kernel(packing.make_pack([run]).signature) is None


@pytest.mark.parametrize(
    ("task", "architecture", "method"),
    [
        (LISTED, NARROW, BATCHES),
        (THREE, NARROW, EXACT),
        (LISTED.replace(zipf_exponent=1.0), NARROW, EXACT),
        (LISTED, NARROW, MUON),
        (LISTED, NARROW.replace(n_layers=2), EXACT),
    ],
)
def test_what_was_not_measured_is_left_to_xla(task, architecture, method):
    run = mb.Run(task=task, architecture=architecture, method=method)
    signature = packing.make_pack([run]).signature
    assert resident.find_kernel(signature)
    assert resident.find_kernel(signature, anywhere=False) is None


class _Louder(Transformer):
    def __call__(self, tokens_S):
        return 2 * super().__call__(tokens_S)


class _Slower(Adam):
    pass


class _Harder(mb.Associations):
    def objective(self, *arguments, **named):
        loss, accuracy = super().objective(*arguments, **named)
        return 2 * loss, accuracy


@pytest.mark.parametrize("what", ["module", "optimizer", "task"])
def test_what_a_subclass_changes_is_left_to_xla(what):
    signature = signature_of(EXACT)
    assert resident.find_kernel(signature) is not None
    module = signature.module
    sizes = {x.name: getattr(module, x.name) for x in dataclasses.fields(module) if x.init}
    sizes = {name: x for name, x in sizes.items() if name not in ("parent", "name")}
    changed = {
        "module": _Louder(**sizes),
        "optimizer": object.__new__(_Slower),
        "task": object.__new__(_Harder),
    }[what]
    if what != "module":
        vars(changed).update(vars(getattr(signature, what)))
    assert resident.find_kernel(dataclasses.replace(signature, **{what: changed})) is None


@pytest.fixture
def gpu(monkeypatch):
    """As if this process had one GPU."""
    device = types.SimpleNamespace(platform="gpu", local_hardware_id=0)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    return device


@pytest.mark.parametrize(
    ("architecture", "wanted", "used"),
    [
        ("sm_90", None, True),
        ("sm_80", None, False),
        (None, None, False),
        ("sm_80", "1", True),
        ("sm_90", "0", False),
    ],
)
def test_plans_count_on_kernels_where_they_were_measured(
    gpu, architecture, wanted, used, monkeypatch
):
    def driver(device):
        if architecture is None:
            raise OSError("libcuda.so.1")
        return types.SimpleNamespace(architecture=architecture)

    monkeypatch.setattr(cuda, "_driver", driver)
    if wanted:
        monkeypatch.setenv(resident.VARIABLE, wanted)
    assert resident.is_used_on_gpu() == used


def signature_of(method, task=LISTED):
    return packing.make_pack([mb.Run(task=task, architecture=NARROW, method=method)]).signature


@compiler
def test_a_cpu_leaves_short_chunks_of_little_work_to_xla(monkeypatch):
    tiny = mb.Associations(vocab_size=4)
    short = EXACT.replace(n_batches=4)
    assert resident.find_used(signature_of(short, tiny)) is None
    assert resident.find_used(signature_of(short.replace(n_batches=16), tiny)) is not None
    # As much work as it takes, in examples of few steps.
    large = mb.Associations(vocab_size=40)
    assert resident.find_used(signature_of(short, large)) is not None
    batches = mb.Training(batch_size=16, n_batches=4)
    assert resident.find_used(signature_of(batches, large)) is None
    monkeypatch.setenv(resident.VARIABLE, "1")
    assert resident.find_used(signature_of(short, tiny)) is not None


def test_a_gpu_that_cannot_run_a_kernel_is_left_to_xla(gpu, monkeypatch, caplog):
    def fail(device):
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(cuda, "_driver", fail)
    assert resident.find_chunk(signature_of(EXACT)) is None
    assert "a kernel cannot be used: libcuda.so.1" in caplog.text


def test_models_that_do_not_fit_are_left_to_xla(gpu, monkeypatch):
    sizes = []

    def load(binary):
        return None, 4096 if len(sizes) > 1 else 2**18

    def compile_source(source, words, architecture):
        sizes.append(int(words[-1].removeprefix("-DB=")))
        return b""

    driver = types.SimpleNamespace(architecture="sm_90", most_shared=2**17, load=load)
    monkeypatch.setattr(cuda, "_driver", lambda device: driver)
    monkeypatch.setattr(cuda, "_load", compile_source)
    assert resident.find_chunk(signature_of(EXACT)) is not None
    assert sizes == [256, 128]
    driver.most_shared = 1024
    assert resident.find_chunk(signature_of(EXACT)) is None
    driver.most_shared = 2**20
    assert resident.find_chunk(signature_of(EXACT)) is not None
    monkeypatch.setenv(resident.VARIABLE, "0")
    assert resident.find_chunk(signature_of(EXACT)) is None


def test_a_kernel_of_a_gpu_is_compiled_once_for_all_processes(tmp_path, monkeypatch):
    source, made = tmp_path / "kernel.cu", []
    source.write_text("source")

    def compile_source(source, words, architecture):
        made.append((words, architecture))
        return f"{words} {architecture}".encode(), "no warning"

    def load(*arguments):
        # As another process does.
        cuda._load.cache_clear()
        return cuda._load(source, *arguments)

    monkeypatch.setattr(cuda, "compile_source", compile_source)
    monkeypatch.setattr(cuda, "_nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(compiling, "kept_folder", lambda: tmp_path)
    for words in (("-DB=256",), ("-DB=128",)):
        found = {load(words, "sm_90") for _ in range(3)}
        assert found == {f"{words} sm_90".encode()}
    assert len(made) == 2
    load(("-DB=256",), "sm_100")
    monkeypatch.setattr(cuda, "_nvrtc_version", lambda: "13.1")
    load(("-DB=256",), "sm_90")
    source.write_text("another")
    load(("-DB=256",), "sm_90")
    assert len(made) == 5
    # A damaged file is made anew, and nothing else lies in the folder.
    for path in (kept := sorted(tmp_path.glob("*.cubin"))):
        path.write_bytes(b"half")
    assert load(("-DB=256",), "sm_90") == b"('-DB=256',) sm_90"
    assert len(made) == 6
    assert sorted(tmp_path.iterdir()) == sorted([source, *kept])
    for folder in (tmp_path / "missing", None):
        monkeypatch.setattr(compiling, "kept_folder", lambda folder=folder: folder)
        assert load(("-DB=256",), "sm_90") == b"('-DB=256',) sm_90"
    assert len(made) == 8


def test_a_gpu_that_was_not_measured_takes_a_kernel_when_told(gpu, monkeypatch):
    driver = types.SimpleNamespace(
        architecture="sm_80", most_shared=2**17, load=lambda binary: (None, 4096)
    )
    monkeypatch.setattr(cuda, "_driver", lambda device: driver)
    monkeypatch.setattr(cuda, "_load", lambda *arguments: b"")
    assert resident.find_chunk(signature_of(EXACT)) is None
    monkeypatch.setenv(resident.VARIABLE, "1")
    assert resident.find_chunk(signature_of(EXACT)) is not None


def test_programs_take_a_kernel_where_there_is_one(monkeypatch):
    def chunk(*arguments):
        raise NotImplementedError

    monkeypatch.setattr(resident, "find_chunk", lambda signature: chunk)
    compile_program.cache_clear()
    assert compile_program(signature_of(EXACT), 1, 1).chunk is chunk
    compile_program.cache_clear()
