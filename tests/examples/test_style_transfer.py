"""The style transfer of the examples against the same networks in torch, float64, differentiated by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import openmps as mps
import style_transfer
from helpers import close_to_torch

Array = np.ndarray
SIZE, FILTERS, STYLES, BATCH = 16, 3, 2, 3
CONTENT_WEIGHT, STYLE_WEIGHT = 1.5, 4.0
# Rounding of float32 through 26 layers forwards and backwards: measured 6e-6 of the largest number of an array.
RATE = 0.01


def made(seed: int = 0, learning_rate: float = 1e-3) -> style_transfer.StyleTransfer:
    device = mps.mtl_device("cpu")
    transformer = style_transfer.Transformer(device, FILTERS, STYLES, learning_rate, seed)
    vgg = style_transfer.VGG(FILTERS, seed + 1)
    return style_transfer.StyleTransfer(device, transformer, vgg, SIZE, CONTENT_WEIGHT, STYLE_WEIGHT)


def torch_images(images: Array, *, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(images.transpose(0, 3, 1, 2), dtype=torch.float64, requires_grad=requires_grad)


def floats(buffer: Any) -> Array:
    return buffer.contents().view(np.float32)


def parameters(transformer: style_transfer.Transformer) -> dict[str, torch.Tensor]:
    """What is trained for the chosen style, as torch has it, by the names of layers."""
    found = {f"{each.label()}.weights": each.weights().transpose(0, 3, 1, 2) for each in transformer.convolutions}
    for source in transformer.normalizations:
        found |= {f"{source.label()}.gamma": floats(source.gamma()), f"{source.label()}.beta": floats(source.beta())}
    return {name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in found.items()}


def painted(x: torch.Tensor, p: dict[str, torch.Tensor]) -> torch.Tensor:
    def layer(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        weights = p[f"{name}.weights"]
        x = F.conv2d(x, weights, stride=stride, padding=weights.shape[-1] // 2)
        return F.instance_norm(x, weight=p[f"{name} norm.gamma"], bias=p[f"{name} norm.beta"], eps=1e-5)

    x = layer(x, "encode1").relu()
    x = layer(x, "encode2", 2).relu()
    x = layer(x, "encode3", 2).relu()
    for block in range(1, 6):
        x = x + layer(layer(x, f"residual{block}a").relu(), f"residual{block}b")
    for name in ("decode1", "decode2"):
        x = layer(F.interpolate(x, scale_factor=2, mode="nearest"), name).relu()
    return layer(x, "colours").sigmoid()


def features(x: torch.Tensor, vgg: style_transfer.VGG) -> list[torch.Tensor]:
    x = 2.0 * x - 1.0
    found: list[torch.Tensor] = []
    for sources in vgg.blocks:
        x = F.avg_pool2d(x, 2) if found else x
        for source in sources:
            weights = torch.tensor(source.weights().transpose(0, 3, 1, 2), dtype=torch.float64)
            biases = torch.tensor(source.bias_terms(), dtype=torch.float64)
            x = F.conv2d(x, weights, biases, padding=1).relu()
        found.append(x)
    return found


def losses(picture: torch.Tensor, content: torch.Tensor, style: torch.Tensor, vgg: Any) -> dict[str, torch.Tensor]:
    """Of each picture; means, so that the weights of the example are checked too."""

    def gram(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nchw,ndhw->ncd", x, x) / (x.shape[2] * x.shape[3])

    ours, theirs, wanted = (features(x, vgg) for x in (picture, style, content))
    of_style = sum(((gram(a) - gram(b)) ** 2).mean((1, 2)) for a, b in zip(ours, theirs, strict=True))
    of_content = ((ours[2] - wanted[2]) ** 2).mean((1, 2, 3))
    parts = {"style loss": STYLE_WEIGHT * of_style, "content loss": CONTENT_WEIGHT * of_content}
    return {**parts, "total loss": parts["style loss"] + parts["content loss"]}


def test_losses_and_every_gradient_are_those_of_torch() -> None:
    training = made()
    transformer = training.transformer
    random = np.random.default_rng(2)
    transformer.choose(1)
    for source in transformer.normalizations:  # other scales and shifts than 1 and 0
        for buffer, middle in ((source.gamma(), 1.0), (source.beta(), 0.0)):
            floats(buffer)[:] = random.normal(middle, 0.2, source.number_of_feature_channels())
    content = random.random((BATCH, SIZE, SIZE, 3), np.float32)
    style = random.random((SIZE, SIZE, 3), np.float32)

    p = parameters(transformer)
    x = torch_images(content, requires_grad=True)
    picture = painted(x, p)
    expected = losses(picture, x.detach(), torch_images(style[None]), training.vgg)
    expected["total loss"].sum().backward()

    graph = training.training_graph(input_gradient=True, export_states=True)
    assert {handle.label() for handle in graph.source_image_handles} == {"content", "style", "scale", "mean"}
    labels = [handle.label() for handle in graph.intermediate_image_handles]
    assert sorted(map(str, labels)) == ["content", "content loss", "style loss", "total loss"]
    command_buffer = training.device.new_command_queue().command_buffer()
    states: list[Any] = []
    found = training.encode(graph, command_buffer, content, style, states)
    command_buffer.commit()
    command_buffer.wait_until_completed()

    for name, wanted in expected.items():
        close_to_torch(found[name].numpy().reshape(-1), wanted, name)
    close_to_torch(found["painted"].numpy().transpose(0, 3, 1, 2), picture, "painted")
    assert x.grad is not None
    close_to_torch(found["content"].numpy().transpose(0, 3, 1, 2), x.grad, "content")
    names = [handle.label() for handle in graph.result_state_handles or ()]
    assert len(names) == len(states) == 32
    for name, batch in zip(names, states, strict=True):
        if name.endswith("norm"):
            for kind in ("gamma", "beta"):
                gradient = p.pop(f"{name}.{kind}").grad
                assert gradient is not None
                close_to_torch(
                    sum(floats(getattr(each, f"gradient_for_{kind}")) for each in batch), gradient, f"{name}.{kind}"
                )
        else:
            gradient = p.pop(f"{name}.weights").grad
            assert gradient is not None
            gradient = gradient.permute(0, 2, 3, 1)
            numbers = floats(batch[0].gradient_for_weights)[: gradient.numel()]
            close_to_torch(numbers.reshape(gradient.shape), gradient, f"{name}.weights")
    assert not p


def test_updates_are_adam_over_the_sum_of_a_batch_and_leave_the_other_style() -> None:
    training = made(learning_rate=RATE)
    transformer = training.transformer
    random = np.random.default_rng(3)
    graph = training.training_graph()
    queue = training.device.new_command_queue()
    style = random.random((SIZE, SIZE, 3), np.float32)
    transformer.choose(0)
    momenta: dict[str, Any] = {}
    velocities: dict[str, Any] = {}
    for step in (1, 2):
        content = random.random((BATCH, SIZE, SIZE, 3), np.float32)
        p = parameters(transformer)
        x = torch_images(content)
        losses(painted(x, p), x, torch_images(style[None]), training.vgg)["total loss"].sum().backward()

        command_buffer = queue.command_buffer()
        transformer.reload(graph, command_buffer)
        training.encode(graph, command_buffer, content, style)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        compared = 0
        for name, values in parameters(transformer).items():
            gradient = p[name].grad
            assert gradient is not None
            momenta[name] = 0.9 * momenta.get(name, 0.0) + 0.1 * gradient
            velocities[name] = 0.999 * velocities.get(name, 0.0) + 0.001 * gradient**2
            rate = RATE * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
            expected = p[name] - rate * momenta[name] / (velocities[name].sqrt() + 1e-8)
            # Adam divides by a gradient's size: what is a twentieth of the largest is known to a thousandth.
            sure = gradient.abs() > gradient.abs().max() / 20
            compared += int(sure.sum())
            assert (values - expected).abs()[sure].max() < RATE / 500, name
        assert compared > 1000
    transformer.choose(1)
    for source in transformer.normalizations:
        assert (floats(source.gamma()) == 1.0).all() and (floats(source.beta()) == 0.0).all()


def test_a_graph_paints_in_the_style_that_it_was_given() -> None:
    training = made()
    transformer, device = training.transformer, training.device
    random = np.random.default_rng(4)
    for style in range(STYLES):
        transformer.choose(style)
        for source in transformer.normalizations:
            floats(source.gamma())[:] = random.normal(1.0, 0.2, source.number_of_feature_channels())
            floats(source.beta())[:] = random.normal(0.0, 0.2, source.number_of_feature_channels())
    content = random.random((BATCH, SIZE, SIZE, 3), np.float32)
    transformer.choose(0)
    graph = transformer.graph(device)
    for style in (0, 1):
        transformer.choose(style)
        command_buffer = device.new_command_queue().command_buffer()
        transformer.reload(graph, command_buffer)
        reloaded = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, content)])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        assert reloaded is not None
        expected = painted(torch_images(content), parameters(transformer))
        close_to_torch(reloaded.numpy().transpose(0, 3, 1, 2), expected, f"style {style}, reloaded")
        found = style_transfer.repaint(transformer, device, content, style)
        close_to_torch(found.transpose(0, 3, 1, 2), expected, f"style {style}")


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pixels"), [(9, 3, 1, 1), (8, 3, 2, 1), (7, 9, 1, 4), (10, 4, 3, 2)]
)
def test_the_padding_is_that_of_torch(size: int, kernel: int, stride: int, pixels: int) -> None:
    device = mps.mtl_device("cpu")
    random = np.random.default_rng(5)
    descriptor = mps.MPSCNNConvolutionDescriptor(kernel, kernel, 2, 3)
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = stride
    source = mps.ArrayConvolutionDataSource(descriptor, random.normal(size=(3, kernel, kernel, 2)))
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    node.padding_policy = style_transfer.EvenPadding(pixels)
    graph = mps.MPSNNGraph(device, node.result_image)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    images = random.random((1, size, size + 1, 2), np.float32)
    command_buffer = device.new_command_queue().command_buffer()
    found = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, images)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert found is not None
    weights = torch_images(source.weights())
    expected = F.conv2d(torch_images(images), weights, stride=stride, padding=pixels)
    close_to_torch(found.numpy().transpose(0, 3, 1, 2), expected, "convolution")


def test_the_losses_fall() -> None:
    device = mps.mtl_device("cpu")
    styles = style_transfer.draw_styles(SIZE)
    transformer = style_transfer.Transformer(device, 4, len(styles), 0.03)
    training = style_transfer.StyleTransfer(device, transformer, style_transfer.VGG(4), SIZE)
    found = np.array(style_transfer.train(training, np.random.default_rng(0), styles, 2, 60))
    assert np.isfinite(found).all()
    for index in range(len(styles)):
        of_style = found[index :: len(styles)]
        assert of_style[-5:].mean() < of_style[:5].mean() / 2


def test_it_runs_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    style_transfer.main(["--device", "cpu", "--size", "16", "--filters", "2", "--steps", "2", "--batch", "1"])
    assert "style 1: loss" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        style_transfer.main(["--size", "12"])
