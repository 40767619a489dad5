"""The models of training: parameters, inputs, a published pace, and operations of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BATCH = 32
"""Samples of a node and step where a study gives no batch."""

PACED_SECONDS = 0.02
"""Seconds of a step of the model "paced" where a study gives none."""


@dataclass(frozen=True)
class Model:
    """A model.

    Attributes:
        parameters: their number, as published; 0: as set.
        pixels: edge of its images, as published; 0: it reads tokens, or nothing.
        rate: images or tokens that one accelerator trains on in a second, as published; 0: unknown.
        operations: of a forward pass, in 1e9: on an image of that size, or on a token.
        compiling: seconds in which one core compiles a step.
        source: of the rate.
    """

    parameters: int
    pixels: int = 0
    rate: float = 0.0
    operations: float = 0.0
    compiling: float = 0.0
    source: str = ""

    def inputs(self, batch: int, tokens: int) -> int:
        """Returns the images or tokens of a step."""
        return batch if self.pixels else batch * tokens

    def published_seconds(self, batch: int, tokens: int) -> float:
        """Returns the time of a step at the published pace; `PACED_SECONDS` if there is none."""
        return self.inputs(batch, tokens) / self.rate if self.rate else PACED_SECONDS

    def step_operations(self, batch: int, tokens: int, image: int) -> float:
        """Returns floating-point operations of a step: a backward pass takes two forward passes."""
        area = (image / self.pixels) ** 2 if image and self.pixels else 1.0
        return 3e9 * self.operations * area * self.inputs(batch, tokens)


_TENSORFLOW = (
    "tensorflow.org/performance/benchmarks, 2017: one NVIDIA Tesla P100, synthetic data, batch 64"
)
_LLM_C = (
    "github.com/karpathy/llm.c/discussions/481, 2024: 1e10 tokens in 90 minutes, an eighth of eight"
    " NVIDIA A100"
)

MODELS: Mapping[str, Model] = {
    "paced": Model(0),
    "resnet50": Model(25_557_032, 224, 219.0, 8.2, 16.0, _TENSORFLOW),
    "vgg16": Model(138_357_544, 224, 154.0, 31.0, 6.0, _TENSORFLOW),
    "inceptionv3": Model(23_834_568, 299, 142.0, 11.4, 20.0, _TENSORFLOW),
    "transformer": Model(124_439_808, 0, 231_000.0, 0.25, 6.0, _LLM_C),
}
"""Model -> its numbers; the transformer is GPT-2 small, Inception-v3 has no auxiliary classifier.

"paced" is 16 arrays with as many parameters as set. The pace of images is that of the published
size.
"""
