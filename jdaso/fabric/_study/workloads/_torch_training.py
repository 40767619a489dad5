"""Paced steps of PyTorch's DistributedDataParallel: it averages while the backward pass goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn.parallel import DistributedDataParallel  # pyright: ignore[reportMissingImports]

from ._torch import Torch

_FORWARD = 1 / 3
"""Share of a step that its forward pass takes."""


class _Passage(torch.autograd.Function):
    """Gives a parameter's gradient when its turn in the backward pass comes."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, clock: _Clock, place: float) -> Any:
        ctx.weight, ctx.clock, ctx.place = weight, clock, place
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:  # pyright: ignore
        ctx.clock.wait_until(1 - ctx.place * (1 - _FORWARD))
        return grad, ctx.clock.share * ctx.weight.detach(), None, None


class _Clock:
    """The time of a step, and the node's share of the parameters as gradients; see `Paced`."""

    def __init__(self, seconds: float, share: float):
        self._seconds, self.share, self._begin = seconds, share, 0.0

    def start(self) -> None:
        self._begin = time.perf_counter()

    def wait_until(self, part: float) -> None:
        """Waits until this part of the step's time has passed."""
        time.sleep(max(0.0, self._begin + part * self._seconds - time.perf_counter()))


class _Paced(nn.Module):
    """Parameters of these shapes; the backward pass goes from the last to the first."""

    def __init__(self, shapes: Sequence[Sequence[int]], clock: _Clock):
        super().__init__()
        self._clock, self._x = clock, torch.zeros(1, requires_grad=True)
        self.weights = nn.ParameterList(
            torch.full(tuple(shape), 0.5 + k) for k, shape in enumerate(shapes)
        )

    def forward(self) -> Any:
        """Returns zero."""
        self._clock.start()
        self._clock.wait_until(_FORWARD)
        x = self._x
        for k, weight in enumerate(self.weights):
            x = _Passage.apply(x, weight, self._clock, k / len(self.weights))
        return x.sum()


class TorchSteps:
    """Steps of a model and its optimizer."""

    def __init__(self, model: Any):
        self._model = model
        self._inner = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def __call__(self) -> float:
        """Takes a step, and returns its loss."""
        self._inner.zero_grad()
        loss = self._model()
        loss.backward()
        self._inner.step()
        return loss.item()

    def gradients(self) -> list[Any]:
        """Returns the gradients of the last step."""
        return [parameter.grad.numpy() for parameter in self._model.parameters()]


def steps_of(
    transport: Torch, shapes: Sequence[Sequence[int]], seconds: float, *, averages: bool
) -> TorchSteps:
    """Returns the steps of this node; with `averages` those of DistributedDataParallel."""
    share = (transport.rank + 1) / transport.size
    model = _Paced(shapes, _Clock(seconds, share))
    return TorchSteps(DistributedDataParallel(model) if averages else model)
