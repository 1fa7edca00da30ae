"""The contender of JAX: the digit network's training step, jitted as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.harness import SkippedError, Turn
from bench.work import Work, batches


def digits_training(device: str, **said: Any) -> Turn:
    """Steps from bytes and classes on the host to the new weights; channels last, Adam of optax."""
    import jax
    import optax
    from jax import numpy as jnp

    work = Work(**said)
    if device != "cpu" or work.half:
        raise SkippedError("measured on the CPU alone, in float32")
    jax.config.update("jax_platforms", "cpu")  # which would be a GPU where there is one
    key = jax.random.PRNGKey(0)
    shapes = {"c1": (5, 5, 1, 32), "b1": (32,), "c2": (5, 5, 32, 64), "b2": (64,)}
    shapes |= {"f1": (3136, 1024), "g1": (1024,), "f2": (1024, work.classes), "g2": (work.classes,)}
    numbers = {name: jax.random.normal(key, shape) * 0.05 for name, shape in shapes.items()}
    adam = optax.adam(1e-3)

    def convolution(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def halved(x: Any) -> Any:
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def loss(p: Any, x: Any, y: Any, key: Any) -> Any:
        h = halved(jax.nn.relu(convolution(x, p["c1"]) + p["b1"]))
        h = halved(jax.nn.relu(convolution(h, p["c2"]) + p["b2"]))
        h = jax.nn.relu(h.reshape(work.batch, -1) @ p["f1"] + p["g1"])
        h = h * jax.random.bernoulli(key, 0.5, h.shape) * 2
        return optax.softmax_cross_entropy_with_integer_labels(h @ p["f2"] + p["g2"], y).mean()

    @jax.jit
    def step(p: Any, state: Any, key: Any, pixels: Any, classes: Any) -> Any:
        key, mine = jax.random.split(key)
        slopes = jax.grad(loss)(p, pixels.astype(jnp.float32) / 255, classes, mine)
        updates, state = adam.update(slopes, state)
        return optax.apply_updates(p, updates), state, key

    held, given = [numbers, adam.init(numbers), key], batches(work)

    def run(steps: int) -> None:
        for _ in range(steps):
            images, classes = next(given)
            held[:] = step(*held, jnp.asarray(images), jnp.asarray(classes.astype(np.int32)))
        jax.block_until_ready(held[0])

    return Turn(run)
