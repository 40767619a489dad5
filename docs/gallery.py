"""Draws the pictures in docs/_static/gallery, with what draws yours too.

python docs/gallery.py
"""

import pathlib
import runpy

import numpy as np

from jdaso import pipeline
from jdaso.cli import main
from jdaso.plots import draw_plan, draw_schedule

DOCS = pathlib.Path(__file__).parent
PICTURES = DOCS / "_static" / "gallery"


def draw():
    unet = runpy.run_path(str(DOCS.parent / "examples" / "hybrid_unet.py"), run_name="unet")
    params = unet["init_params"](np.random.default_rng(0))
    plan = pipeline.partition(
        unet["loss_of"], params, unet["make_batch"](0), num_partitions=3, num_microbatches=4
    )
    draw_plan(plan, PICTURES / "plan.png")
    for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
        stages, microbatches = 4 * chunks, 8
        order = pipeline.make_schedule(name, 4, microbatches, chunks).order
        seconds = [1 / chunks] * stages, [2 / chunks] * stages
        draw_schedule(order, seconds, PICTURES / f"{name}.png")
    main(["simulate", "--preset", "cloud-25g", "--plot", str(PICTURES / "scaling.png")])


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    draw()
