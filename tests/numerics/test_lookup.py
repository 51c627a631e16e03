"""What depends on the platform is traced for any, or for that of this process alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from memobench.numerics import lookup

TABLE = np.arange(12.0, dtype=np.float32).reshape(4, 3)


def _double(number):
    return 2 * lookup.rows(jnp.asarray(TABLE), number)


@pytest.mark.usefixtures("every_platform")
def test_a_trace_for_here_has_one_form_and_one_for_any_platform_both():
    number = np.array([3, 1])
    doubled = jax.jit(_double)
    for_any = doubled.trace(number)
    with lookup.traced_for_here():
        for_here = doubled.trace(number)
        np.testing.assert_array_equal(doubled(number), 2 * TABLE[number])
    assert "platform_index" in str(for_any.jaxpr)
    assert "platform_index" not in str(for_here.jaxpr)
    # What was traced for here is not taken where any platform is asked for.
    assert "platform_index" in str(doubled.trace(number).jaxpr)
    assert "gather" in for_here.lower().as_text()
    assert "gather" not in for_any.lower(lowering_platforms=("tpu",)).as_text()
    np.testing.assert_array_equal(doubled(number), 2 * TABLE[number])
