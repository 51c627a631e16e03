"""What is compiled is kept for other processes, in the user's cache folder or one that is named."""

import os
import stat
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

import memobench
from memobench.engine import compiling, devices


@pytest.fixture
def programs(tmp_path):
    """The folder of JAX_COMPILATION_CACHE_DIR, which JAX reads when it starts."""
    yield from _with_settings(jax_compilation_cache_dir=str(tmp_path), then=tmp_path)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The cache folder of a user who said nothing of it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield from _with_settings(jax_compilation_cache_dir=None, then=tmp_path)


def _with_settings(then, **more):
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0,
        **more,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    _set(settings)
    yield then
    _set(before)


def _set(settings):
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_a_program_is_compiled_once_for_all_processes(programs):
    hits = []

    def listen(event, **_):
        if event == "/jax/compilation_cache/cache_hits":
            hits.append(event)

    def compiled():
        # A function of its own each time, as another process would have.
        shape = jax.ShapeDtypeStruct((3,), jnp.float32)
        return compiling.compile_stacked(
            lambda x: 2 * x + 1, shape, specs=devices.SPLIT, donate=(0,)
        )

    jax.monitoring.register_event_listener(listen)
    try:
        first, kept = compiled(), {path.name for path in programs.iterdir()}
        second = compiled()
    finally:
        jax.monitoring.unregister_event_listener(listen)
    assert kept
    assert hits
    assert {path.name for path in programs.iterdir()} == kept
    np.testing.assert_array_equal(first(jnp.arange(3.0)), second(jnp.arange(3.0)))


def test_programs_are_kept_in_the_users_cache_folder(home, make_run):
    assert memobench.run([make_run()], progress=False)["status"].eq("ok").all()
    (folder,) = (home / "memobench").iterdir()
    assert str(folder) == jax.config.jax_compilation_cache_dir
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [x for x in folder.iterdir() if x.name.startswith("jit_chunk-")]


@pytest.mark.parametrize(
    "said", [{"jax_compilation_cache_dir": "elsewhere"}, {"jax_enable_compilation_cache": False}]
)
def test_what_a_user_said_of_the_folder_stays(home, said):
    _set(said)
    before = jax.config.jax_compilation_cache_dir
    compiling.keep_programs()
    assert jax.config.jax_compilation_cache_dir == before
    assert not list(home.iterdir())


@pytest.mark.parametrize("place", ["a_file", "relative"])
def test_a_folder_that_cannot_be_is_done_without(home, monkeypatch, place):
    (home / "a_file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "a_file") if place == "a_file" else place)
    compiling.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_a_folder_that_is_read_only_is_done_without(home, monkeypatch):
    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(compiling.tempfile, "TemporaryFile", refuse)
    compiling.keep_programs()
    assert jax.config.jax_compilation_cache_dir is None


def test_programs_of_long_ago_are_deleted(home):
    old, new = (home / "memobench" / "programs-of-another-machine" / x for x in ("old", "new"))
    old.parent.mkdir(parents=True)
    for path in (old, new):
        path.write_text("")
    empty = old.parent / "of-a-killed-process"
    empty.mkdir()
    then = time.time() - compiling.KEPT_SECONDS - 60
    for path in (old, empty):
        os.utime(path, (then, then))
    compiling.keep_programs()
    assert new.exists()
    assert not old.exists()
    assert not empty.exists()


def test_machine_code_of_another_cpu_lies_elsewhere(home, monkeypatch):
    compiling.keep_programs()
    here = jax.config.jax_compilation_cache_dir
    _set({"jax_compilation_cache_dir": None})
    monkeypatch.setattr(compiling.platform, "machine", lambda: "another")
    compiling.keep_programs()
    assert jax.config.jax_compilation_cache_dir != here


def test_options_that_this_xla_lacks_are_left_out(monkeypatch):
    before = compiling.options()
    monkeypatch.setitem(compiling.OPTIONS, "xla_cpu_of_another_version", True)
    assert compiling.options() == before
    assert before.items() <= compiling.OPTIONS.items()
    assert "xla_gpu_deterministic_ops" in before
