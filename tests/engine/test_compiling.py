"""What is compiled can be kept for other processes, where the user names a folder for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from memobench.engine import compiling, devices


@pytest.fixture
def programs(tmp_path):
    """The folder of JAX_COMPILATION_CACHE_DIR, which JAX reads when it starts."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    _set(settings)
    yield tmp_path
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


def test_options_that_this_xla_lacks_are_left_out(monkeypatch):
    before = compiling.options()
    monkeypatch.setitem(compiling.OPTIONS, "xla_cpu_of_another_version", True)
    assert compiling.options() == before
    assert before.items() <= compiling.OPTIONS.items()
    assert "xla_gpu_deterministic_ops" in before
