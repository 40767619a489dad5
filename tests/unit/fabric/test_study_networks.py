"""The networks of training: published numbers of parameters, losses that fall, data from a seed."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from nights import rows

from jdaso.fabric._study.models import MODELS
from jdaso.fabric._study.workloads._inceptionv3 import InceptionV3
from jdaso.fabric._study.workloads._networks import (
    NETWORKS,
    first_values,
    network_of,
    of_images,
    of_tokens,
)
from jdaso.fabric._study.workloads._places import Own
from jdaso.fabric._study.workloads._resnet50 import ResNet50
from jdaso.fabric._study.workloads._transformer import Transformer
from jdaso.fabric._study.workloads._vgg16 import Vgg16
from jdaso.fabric._study.workloads._work import Real
from jdaso.fabric._study.workloads.training import JaxSteps

TINY = {
    "resnet50": (lambda: of_images(ResNet50(4, 4, (1, 1, 1)), 16), 16, 3e-3),
    "vgg16": (lambda: of_images(Vgg16(4, 4), 32), 32, 3e-3),
    "inceptionv3": (lambda: of_images(InceptionV3(4, 16), 107), 107, 1e-2),
    "transformer": (lambda: of_tokens(Transformer(16, 12, 16, 2, 1)), 12, 1e-2),
}
"""A small form of each network, the size of its inputs, and a rate at which it learns quickly."""


def test_every_model_but_the_paced_one_is_a_network():
    assert {"paced", *NETWORKS} == set(MODELS) and set(TINY) == set(NETWORKS)


@pytest.mark.parametrize("model", NETWORKS)
def test_a_network_has_the_published_number_of_parameters(model):
    leaves = jax.tree.leaves(network_of(model).shapes())
    assert sum(math.prod(leaf.shape) for leaf in leaves) == MODELS[model].parameters
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("model", rows(TINY, day=["resnet50", "transformer"]))
def test_a_loss_falls_on_data_that_was_never_seen(model):
    make, size, rate = TINY[model]
    steps = JaxSteps(Real(make(), 16, size), Own(0), optax.adam(rate))
    losses = [steps() for _ in range(30)]
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), losses


def test_images_below_the_published_size_leave_the_parameters_as_they_are():
    """The dense layers of VGG-16 read 7 x 7 points for any size of image."""
    shapes = [of_images(Vgg16(4, 4), pixels).shapes() for pixels in (32, 64, 224)]
    assert shapes[0] == shapes[1] == shapes[2]


def test_too_small_an_image_is_refused():
    with pytest.raises(ValueError, match="Inception-v3 reads 75 pixels or more, got 64"):
        of_images(InceptionV3(), 64).shapes()


def test_a_token_does_not_see_those_that_follow():
    network = of_tokens(Transformer(16, 12, 16, 2, 1))
    params = first_values(network.shapes())
    tokens = jnp.arange(12)[None] % 7

    @jax.jit
    def logits(tokens):
        return network.module.apply({"params": params}, tokens)

    changed = logits(tokens.at[0, 8].set(9)) - logits(tokens)
    moved = np.abs(changed[0]).max(-1) > 0
    assert not moved[:8].any() and moved[8:].all()


@pytest.mark.parametrize("model", ["vgg16", "transformer"])
def test_data_come_from_the_seed_the_step_and_the_node(model):
    make, size, _ = TINY[model]
    network = make()
    work = Real(network, 4, size)
    params = work.params()
    assert jax.tree.all(jax.tree.map(np.array_equal, params, work.params()))
    loss = jax.jit(lambda n, node: work.gradient(params, n, node)[0])
    found = [float(loss(n, node)) for n, node in ((0, 0), (0, 0), (1, 0), (0, 1))]
    assert found[0] == found[1] and len(set(found)) == 3
    assert 0.5 < found[0] / math.log(16 if model == "transformer" else 4) < 3
