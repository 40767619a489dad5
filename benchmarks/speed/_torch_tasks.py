"""A step of PyTorch: paced, or the networks of `benchmarks/lib/tasks.py` rebuilt.

They have the same number and shapes of parameters, the same images and texts, and each node has
the same part of a step's batch. Weights start as PyTorch makes them: only the time matters here.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LEAVES = 16


class PacedLayer(torch.autograd.Function):
    """Takes its time both ways, and gives a gradient of every parameter."""

    @staticmethod
    def forward(ctx, x, weight, seconds):
        ctx.weight, ctx.seconds = weight, seconds
        time.sleep(seconds / 3)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds * 2 / 3)
        return grad, 1e-3 * ctx.weight.detach(), None


class Paced(nn.Module):
    """A third forward and two thirds backward, spread evenly over the layers, as usual."""

    def __init__(self, parameters, seconds):
        super().__init__()
        self.seconds, self.x = seconds / LEAVES, torch.zeros(1, requires_grad=True)
        self.weights = nn.ParameterList(
            torch.full((parameters // LEAVES,), 0.5 + k) for k in range(LEAVES)
        )

    def forward(self, n):
        x = self.x
        for weight in self.weights:
            x = PacedLayer.apply(x, weight, self.seconds)
        return x.sum()


class Demo(nn.Module):
    """The demo's convolutional network; the loss of images and their labels."""

    def __init__(self):
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(1, 32, 5, 2), nn.Conv2d(32, 64, 3, 2)])
        self.wide, self.out = nn.Linear(7 * 7 * 64, 256), nn.Linear(256, 10)

    def forward(self, images, labels):
        x = (images[:, None].float() / 255 - 0.286) / 0.353
        for convolution, left, right in zip(self.convolutions, (1, 0), (2, 1), strict=True):
            x = functional.relu(convolution(functional.pad(x, (left, right, left, right))))
        x = functional.relu(self.wide(x.flatten(1)))
        return functional.cross_entropy(self.out(x), labels.long())


class Text(nn.Module):
    """The character transformer; the loss of texts."""

    def __init__(self, length=32, width=64, heads=4, layers=2):
        super().__init__()
        self.heads = heads
        self.characters = nn.Parameter(torch.randn(128, width) * 0.05)
        self.places = nn.Parameter(torch.randn(length, width) * 0.05)
        shapes = {"attend": 3 * width, "mix": width, "up": 4 * width}
        self.layers = nn.ModuleList()
        for _ in range(layers):
            layer = {k: dense(width, columns) for k, columns in shapes.items()}
            layer |= {"down": dense(4 * width, width), "scales": nn.Parameter(torch.ones(2, width))}
            self.layers.append(nn.ParameterDict(layer))

    def forward(self, codes):
        codes = codes.long()
        x = self.characters[codes[:, :-1]] + self.places
        for p in self.layers:
            parts = (normed(x) * p["scales"][0] @ p["attend"]).chunk(3, -1)
            q, key, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in parts)
            mixed = functional.scaled_dot_product_attention(q, key, v, is_causal=True)
            x = x + mixed.transpose(1, 2).flatten(2) @ p["mix"]
            up = functional.gelu(normed(x) * p["scales"][1] @ p["up"], approximate="tanh")
            x = x + up @ p["down"]
        logits = normed(x) @ self.characters.T
        return functional.cross_entropy(logits.flatten(0, 1), codes[:, 1:].flatten())


class Real(nn.Module):
    """A network, and its loss of what this node takes in step n."""

    def __init__(self, network, arrays, batch, node, nodes):
        super().__init__()
        self.network, self.batch, self.node, self.nodes = network, batch, node, nodes
        self.arrays = [torch.from_numpy(x) for x in arrays]

    def forward(self, n):
        first = (n * self.nodes + self.node) * self.batch
        chosen = (first + torch.arange(self.batch)) % len(self.arrays[0])
        return self.network(*(x[chosen] for x in self.arrays))


def dense(rows, columns):
    return nn.Parameter(torch.randn(rows, columns) / math.sqrt(rows))


def normed(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def model_of(options, node, nodes):
    """The model that the command line names; of a step's number it gives the loss."""
    if options.compute == "paced":
        return Paced(options.parameters, options.step_ms / 1e3)
    with np.load(options.arrays) as file:
        arrays = [file[name] for name in file.files]
    network = {"demo": Demo, "text": Text}[options.compute]()
    return Real(network, arrays, options.batch, node, nodes)
