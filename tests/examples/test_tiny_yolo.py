"""Tiny-YOLO of the examples against the same network in torch, float64, differentiated by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import openmps as mps
import tiny_yolo
from helpers import close_to_torch

Array = np.ndarray
SIZE, CELLS, CLASSES, BATCH = 64, 2, 3, 4
FILTERS = (3, 4, 4, 5, 5, 6, 8, 7)
# Each is a rounding of float32 in at most ten layers of at most 100 products each, of which batch normalization over
# few pixels makes more: measured 4e-6 of the largest number of an array.


def network(**options: Any) -> tiny_yolo.TinyYOLO:
    anchors = tiny_yolo.square_anchors((0.75, 1.5))
    return tiny_yolo.TinyYOLO(mps.mtl_device("cpu"), CLASSES, anchors, FILTERS, **options)


def parameters(made: tiny_yolo.TinyYOLO) -> dict[str, torch.Tensor]:
    """Everything that is trained, as torch has it, by the names of layers."""
    found = {}
    for source in (*made.convolutions, made.head):
        found[f"{source.label()}.weights"] = np.array(source.weights()).transpose(0, 3, 1, 2)
        if source.bias_terms() is not None:
            found[f"{source.label()}.biases"] = np.array(source.bias_terms())
    for source in made.normalizations:
        for name in ("gamma", "beta"):
            found[f"{source.label()}.{name}"] = getattr(source, name)().contents().view(np.float32).copy()
    return {name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in found.items()}


def predictions(
    x: torch.Tensor, p: dict[str, torch.Tensor], statistics: dict[str, torch.Tensor] | None = None
) -> torch.Tensor:
    for level in range(1, 9):
        x = F.conv2d(x, p[f"conv{level}.weights"], padding=1)
        if statistics is not None:
            statistics[f"norm{level}.mean"] = x.detach().mean((0, 2, 3))
            statistics[f"norm{level}.variance"] = x.detach().var((0, 2, 3), unbiased=False)
        x = F.batch_norm(x, None, None, p[f"norm{level}.gamma"], p[f"norm{level}.beta"], training=True, eps=1e-3)
        x = F.leaky_relu(x, 0.1)
        if level < 6:
            x = F.max_pool2d(x, 2)
        elif level == 6:
            x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2, 1)
    return F.conv2d(x, p["head.weights"], p["head.biases"])


def losses(y: torch.Tensor, labels: Array, anchors: Array) -> torch.Tensor:
    """One loss an image: the formula of the framework's YOLO loss, for boxes that each have one object a cell."""
    count = len(anchors)
    boxes = torch.tensor(anchors, dtype=torch.float64)
    y = y.permute(0, 2, 3, 1).reshape(len(y), CELLS, CELLS, count, -1)
    t = torch.tensor(labels, dtype=torch.float64).reshape(y.shape)
    xy, wh, confidence, kinds = y[..., :2].sigmoid(), y[..., 2:4], y[..., 4], y[..., 5:]
    with torch.no_grad():
        common = torch.minimum(boxes, t[..., 2:4]).prod(-1)
        fit = common / (boxes.prod(-1) + t[..., 2:4].prod(-1) - common)
        best = F.one_hot(fit.argmax(-1), count).bool()
        present = (t[..., 4] == 1) & (best | (fit > 0.7))
        absent = ~present & (fit < 0.3)
        size = boxes * wh.exp()
        low = torch.maximum(xy - size / 2, t[..., :2] - t[..., 2:4] / 2)
        high = torch.minimum(xy + size / 2, t[..., :2] + t[..., 2:4] / 2)
        common = (high - low).clamp(min=0).prod(-1)
        target = present * common / (size.prod(-1) + t[..., 2:4].prod(-1) - common)
        goal = (t[..., 2:4] / boxes + 1e-5).log()
    place = ((xy - t[..., :2]) ** 2).sum(-1)
    extent = F.huber_loss(wh, torch.where(present[..., None], goal, wh.detach()), reduction="none").sum(-1)
    sure = F.binary_cross_entropy_with_logits(confidence, target, reduction="none")
    kind = -(t[..., 5:] * kinds.log_softmax(-1)).sum(-1)
    each = present * 10 * (place + extent + sure + kind) + absent * sure
    return each.sum((1, 2, 3)) / len(y)


def ohwi(values: torch.Tensor) -> torch.Tensor:
    """Weights as the framework has them; rows as they are."""
    return values.permute(0, 2, 3, 1) if values.dim() == 4 else values


def test_forward_and_every_gradient_are_those_of_torch() -> None:
    made = network()
    random = np.random.default_rng(5)
    for source in made.normalizations:  # other scales and shifts than 1 and 0
        for values, middle in ((source.gamma(), 1.0), (source.beta(), 0.0)):
            values.contents().view(np.float32)[:] = random.normal(middle, 0.2, source.number_of_feature_channels())
    pictures, boxes, kinds = tiny_yolo.draw(random, BATCH, SIZE)
    values = made.labels(boxes, kinds, CELLS)
    p = parameters(made)
    x = torch.tensor(pictures.transpose(0, 3, 1, 2), dtype=torch.float64, requires_grad=True)
    expected = losses(predictions(x, p), values, made.anchors)
    expected.sum().backward()

    graph = made.training_graph(BATCH, input_gradient=True, export_states=True)
    assert [handle.label() for handle in graph.source_image_handles] == ["pictures"]
    assert [handle.label() for handle in graph.source_state_handles] == ["boxes"]
    labels = mps.MPSCNNLossLabels.batch(made.device, values)
    command_buffer = made.device.new_command_queue().command_buffer()
    states: list[Any] = []
    images = mps.MPSImageBatch.from_numpy(made.device, pictures)
    result = graph.encode_batch(command_buffer, [images], [labels], destination_states=states)
    command_buffer.commit()
    command_buffer.wait_until_completed()

    found = np.array([label.loss_image().numpy().item() for label in labels])
    close_to_torch(found, expected, "loss")
    assert result is not None and x.grad is not None
    close_to_torch(result.numpy().transpose(0, 3, 1, 2), x.grad, "pictures")
    names = [handle.label() for handle in graph.result_state_handles or ()]
    assert len(names) == len(states) == 17
    for name, batch in zip(names, states, strict=True):
        state = batch[0]
        if name.startswith("norm"):
            gradients = {"gamma": state.gradient_for_gamma(), "beta": state.gradient_for_beta()}
        else:
            gradients = {"weights": state.gradient_for_weights, "biases": state.gradient_for_biases}
        for kind, buffer in gradients.items():
            if f"{name}.{kind}" in p:
                wanted = p.pop(f"{name}.{kind}").grad
                assert wanted is not None
                wanted = ohwi(wanted)
                numbers = buffer.contents().view(np.float32)[: wanted.numel()]
                close_to_torch(numbers.reshape(wanted.shape), wanted, f"{name}.{kind}")
    assert not p


def test_updates_are_descent_with_clipped_gradients_and_running_averages() -> None:
    """Two steps: the second has the parameters of the first, in the forward and in the gradient kernels."""
    limit = 0.5
    made = network(make_optimizer=tiny_yolo.clipped_descent(0.05, limit))
    random = np.random.default_rng(6)
    graph = made.training_graph(BATCH)
    queue = made.device.new_command_queue()
    p = parameters(made)
    momenta = {name: torch.zeros_like(values) for name, values in p.items()}
    running = {f"norm{level}.mean": 0.0 for level in range(1, 9)}
    running |= {f"norm{level}.variance": 1.0 for level in range(1, 9)}
    clipped = 0
    for _ in range(2):
        pictures, boxes, kinds = tiny_yolo.draw(random, BATCH, SIZE)
        values = made.labels(boxes, kinds, CELLS)
        command_buffer = queue.command_buffer()
        labels = mps.MPSCNNLossLabels.batch(made.device, values)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(made.device, pictures)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()

        statistics: dict[str, torch.Tensor] = {}
        x = torch.tensor(pictures.transpose(0, 3, 1, 2), dtype=torch.float64)
        losses(predictions(x, p, statistics), values, made.anchors).sum().backward()
        for name, held in p.items():
            assert held.grad is not None
            clipped += int((held.grad.abs() > limit).sum())
            step = held.grad.clamp(-limit, limit) + 5e-4 * held.detach()
            momenta[name] = 0.9 * momenta[name] + 0.05 * step
            p[name] = (held.detach() - momenta[name]).requires_grad_()
        running = {name: 0.9 * running[name] + 0.1 * found for name, found in statistics.items()}
    assert clipped > 100
    for name, found in parameters(made).items():
        close_to_torch(found.detach().numpy(), p[name], name)
    for source in made.normalizations:
        for kind in ("mean", "variance"):
            found = getattr(source, kind)().contents().view(np.float32)
            close_to_torch(found, running[f"{source.label()}.{kind}"], f"{source.label()}.{kind}")


@pytest.mark.parametrize("optimizer", sorted(tiny_yolo.OPTIMIZERS))
def test_the_loss_falls(optimizer: str) -> None:
    device = mps.mtl_device("cpu")
    make = tiny_yolo.OPTIMIZERS[optimizer]()
    made = tiny_yolo.TinyYOLO(device, 3, tiny_yolo.square_anchors(), tiny_yolo.widths(4), make)
    random = np.random.default_rng(0)
    losses = tiny_yolo.train(made, random, SIZE, 8, 40)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-10:]) < 0.75 * losses[0]
    shared, right = tiny_yolo.evaluate(made, random, SIZE, 16)
    assert 0.0 < shared <= 1.0 and 0.0 <= right <= 1.0


def test_boxes_come_back_from_labels() -> None:
    """What the labels say, as predictions, gives the boxes that they were made of."""
    made = network()
    _, boxes, kinds = tiny_yolo.draw(np.random.default_rng(3), 5, SIZE)
    labels = made.labels(boxes, kinds, CELLS).reshape(5, CELLS, CELLS, len(made.anchors), -1)
    raw = labels.copy()
    inside = np.clip(labels[..., :2], 1e-6, 1 - 1e-6)
    raw[..., :2] = np.log(inside / (1 - inside))
    raw[..., 2:4] = np.log(np.maximum(labels[..., 2:4], 1e-6) / made.anchors)
    found, classes = made.best_boxes(raw.reshape(5, CELLS, CELLS, -1))
    np.testing.assert_allclose(found, boxes, atol=1e-5)
    np.testing.assert_array_equal(classes, kinds)


def test_it_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    tiny_yolo.main(["--device", "cpu", "--filters", "1", "--steps", "2", "--batch", "2"])
    assert "on new pictures: boxes overlap by" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tiny_yolo.main(["--size", "50"])
