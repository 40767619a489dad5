"""Stages of real models cost about the same: at most 1.15 times the mean, 1.25 in a U-Net."""

from functools import partial

import pipeline_models as models
import pytest
from nights import rows

from jdaso import pipeline

MODELS = {
    "VGG-16": (partial(models.vgg16, width=8, channels=1), 1.15),
    "ResNet-110": (partial(models.resnet, depth=110, width=8, size=16, channels=1), 1.15),
    "ResNet-110, scanned": (
        partial(models.resnet, depth=110, width=8, size=16, channels=1, scan=True),
        1.15,
    ),
    "transformer": (
        partial(models.transformer, blocks=12, width=64, heads=2, length=32, vocabulary=64),
        1.15,
    ),
    "U-Net": (partial(models.unet, levels=3, width=16, size=32, channels=1), 1.25),
}


@pytest.mark.parametrize("name", rows(MODELS, ["VGG-16", "transformer"]))
def test_no_stage_is_much_larger_than_the_mean(name):
    make, most = MODELS[name]
    model = make()
    params, batch = model.init(0), model.batch(8, 0)
    for partitions in (2, 3, 4):
        plan = pipeline.partition(
            model.loss_fn, params, batch, num_partitions=partitions, num_microbatches=4
        )
        costs = [cost.total for cost in plan.costs]
        assert len(costs) == partitions and min(costs) > 0
        assert max(costs) <= most * sum(costs) / partitions, (partitions, costs)
