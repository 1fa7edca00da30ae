"""The worker's network in PyTorch, float64, where each share of a batch is normalized by itself."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

import group_worker as worker

Array = np.ndarray


def apart(shares: int) -> dict[str, Array]:
    """Ten steps of gradient descent; running averages take the mean of the shares' statistics."""
    own = {name: torch.tensor(array, dtype=torch.float64) for name, array in worker.start().items()}
    trained = {name: own[name].requires_grad_() for name in ("first", "last", "last.biases", "gamma", "beta")}
    mean, variance = torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    for step in range(worker.STEPS):
        images, classes = worker.batch(step)
        x = torch.tensor(images, dtype=torch.float64).permute(0, 3, 1, 2)
        found, total = [], torch.zeros((), dtype=torch.float64)
        for some, answers in zip(x.chunk(shares), torch.tensor(classes).chunk(shares), strict=True):
            y = F.conv2d(some, trained["first"].permute(0, 3, 1, 2), padding=1)
            middle, spread = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
            pixels = y.numel() // 4
            found.append((middle.detach(), spread.detach() * pixels / (pixels - 1)))
            y = (y - middle.view(1, -1, 1, 1)) / (spread + worker.EPSILON).sqrt().view(1, -1, 1, 1)
            y = (y * trained["gamma"].view(1, -1, 1, 1) + trained["beta"].view(1, -1, 1, 1)).relu()
            logits = F.conv2d(y, trained["last"].permute(0, 3, 1, 2), trained["last.biases"]).flatten(1)
            total = total + F.cross_entropy(logits, answers, reduction="sum") / worker.IMAGES
        slopes = torch.autograd.grad(total, list(trained.values()))
        with torch.no_grad():
            for parameter, slope in zip(trained.values(), slopes, strict=True):
                parameter -= worker.RATE * slope
        for running, new in ((mean, [pair[0] for pair in found]), (variance, [pair[1] for pair in found])):
            running += worker.MOMENTUM * (torch.stack(new).mean(0) - running)
    arrays = {**trained, "mean": mean, "variance": variance}
    return {name: array.detach().numpy() for name, array in arrays.items()}
