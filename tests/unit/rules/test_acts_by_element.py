"""Merge rules that a node of several ranks may use: each number of the target by itself."""

import jax.numpy as jnp
import optax
import pytest

from jdaso._rules.merge import Outer, merge_of


def by_name(params):
    return {"w": "a"} if isinstance(params, dict) else "b"


@pytest.mark.parametrize(
    "rule",
    [
        "paper",
        "corrected",
        optax.sgd(0.7, momentum=0.9, nesterov=True),
        optax.adam(0.1),
        optax.adamw(0.1),
    ],
    ids=["paper", "corrected", "nesterov", "adam", "adamw"],
)
def test_rules_of_single_numbers(rule):
    rule = merge_of(rule) if isinstance(rule, str) else Outer(rule)
    assert rule.acts_by_element()


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)),
        optax.chain(optax.clip_by_global_norm(100.0), optax.sgd(1.0)),
        optax.lars(0.1),
        optax.chain(optax.scale_by_trust_ratio(), optax.scale(-1.0)),
        optax.multi_transform({"a": optax.sgd(1.0)}, by_name),
        optax.stateless(lambda g, p: [x - jnp.mean(x) for x in g]),
    ],
    ids=["norm of 1", "norm of 100", "lars", "trust ratio", "labels", "list"],
)
def test_rules_of_whole_leaves(optimizer):
    assert not Outer(optimizer).acts_by_element()
