"""Style transfer: a network that repaints pictures, trained as an app trains it with MPSNNGraph.

What it shows:

- a deep graph with residual additions, nearest upsampling, and instance normalization with scales and shifts of several
  styles, changed on the command buffer;
- losses that are part of the graph: Gram matrices, `MPSNNForwardLossNode`, a tree of additions, and
  `MPSNNInitialGradientNode`, where the gradients start; `training_graph` makes the rest;
- three copies of a fixed network over the same data sources, `stop_gradient` where nothing is to be trained, and
  constant images as inputs;
- several results, exported images found by their handles, and a padding policy of one's own.

Usage, in a clone of the repository::

    python examples/style_transfer.py [--device auto] [--size 32] [--filters 8] [--steps 120] [--batch 2]

It learns two styles and ends with the colours that a new picture takes in each. The network of the apps has
``--filters 32``, and the weights of a trained VGG-16, of 64 filters, where there are random ones here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]

# --- padding ----------------------------------------------------------------------------------------------------------


class EvenPadding:
    """A padding policy: so many zeros on each side, as PyTorch's ``padding=`` has them.

    The bit CUSTOM says that `destination_image_descriptor` has the last word on where the kernel reads and how large
    its result is.
    """

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels

    def padding_method(self) -> mps.MPSNNPaddingMethod:
        """The last step is the policy's own."""
        return mps.MPSNNPaddingMethod.CUSTOM | mps.MPSNNPaddingMethod.SIZE_SAME

    def label(self) -> str:
        """The policy in words."""
        return f"{self.pixels} zeros on each side"

    def destination_image_descriptor(
        self,
        source_images: Sequence[mps.MPSImage],
        source_states: Sequence[mps.MPSState] | None,
        kernel: Any,
        suggested_descriptor: mps.MPSImageDescriptor,
    ) -> mps.MPSImageDescriptor:
        """Place the kernel, whose offset is the centre of its first window, and size its result."""
        kernel.edge_mode = mps.MPSImageEdgeMode.ZERO
        kernel.offset = mps.MPSOffset(kernel.kernel_width // 2 - self.pixels, kernel.kernel_height // 2 - self.pixels)
        across = source_images[0].width + 2 * self.pixels - kernel.kernel_width
        down = source_images[0].height + 2 * self.pixels - kernel.kernel_height
        suggested_descriptor.width = across // kernel.stride_in_pixels_x + 1
        suggested_descriptor.height = down // kernel.stride_in_pixels_y + 1
        return suggested_descriptor


NOT_TRAINED = mps.MPSNNTrainingStyle.UPDATE_DEVICE_NONE
HALVED = mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only()

# --- data sources -----------------------------------------------------------------------------------------------------


class AdamRow:
    """A row of numbers that Adam trains, on the device."""

    def __init__(self, device: mps.MTLDevice, values: Array, learning_rate: float) -> None:
        self.buffer = device.new_buffer(data=values)
        self._descriptor = mps.MPSVectorDescriptor(len(values))
        self._values = mps.MPSVector(self.buffer, self._descriptor)
        self._momentum, self._velocity, self._sum = (
            mps.MPSVector(device=device, descriptor=self._descriptor) for _ in range(3)
        )
        self._adam = mps.MPSNNOptimizerAdam(device, learning_rate)
        self._add = mps.MPSNNOptimizerStochasticGradientDescent(device, -1.0)  # v - (-1) g

    def step(self, command_buffer: mps.MTLCommandBuffer, gradients: Sequence[mps.MTLBuffer]) -> None:
        """Record one step along the sum of some gradients."""
        total, *others = (mps.MPSVector(buffer, self._descriptor) for buffer in gradients)
        for each in others:
            self._add.encode(
                command_buffer, input_gradient_vector=each, input_values_vector=total, result_values_vector=self._sum
            )
            total = self._sum
        self._adam.encode(
            command_buffer,
            input_gradient_vector=total,
            input_values_vector=self._values,
            input_momentum_vector=self._momentum,
            input_velocity_vector=self._velocity,
            result_values_vector=self._values,
        )


class StyleNormalization:
    """The data source of an instance normalization, with gamma and beta for each style; it trains the chosen ones."""

    def __init__(self, device: mps.MTLDevice, channels: int, styles: int, label: str, learning_rate: float) -> None:
        self.style = 0
        self._channels, self._label = channels, label

        def rows(value: float) -> list[AdamRow]:
            return [AdamRow(device, np.full(channels, value, np.float32), learning_rate) for _ in range(styles)]

        self._gamma, self._beta = rows(1.0), rows(0.0)
        self._states = [
            mps.MPSCNNNormalizationGammaAndBetaState(gamma.buffer, beta.buffer)
            for gamma, beta in zip(self._gamma, self._beta, strict=True)
        ]

    def label(self) -> str:
        """The layer's name."""
        return self._label

    def number_of_feature_channels(self) -> int:
        """How many channels are normalized."""
        return self._channels

    def epsilon(self) -> float:
        """Added to the variance."""
        return 1e-5

    def gamma(self) -> mps.MTLBuffer:
        """The scales of the chosen style."""
        return self.gamma_and_beta().gamma

    def beta(self) -> mps.MTLBuffer:
        """The shifts of the chosen style."""
        return self.gamma_and_beta().beta

    def gamma_and_beta(self) -> mps.MPSCNNNormalizationGammaAndBetaState:
        """Both, as kernels take them on a command buffer."""
        return self._states[self.style]

    def update_gamma_and_beta(
        self,
        command_buffer: mps.MTLCommandBuffer,
        instance_normalization_states: Sequence[mps.MPSCNNInstanceNormalizationGradientState],
    ) -> mps.MPSCNNNormalizationGammaAndBetaState:
        """Record a step of Adam. There is a state an image, each with the gradients of that image alone."""
        states = instance_normalization_states
        self._gamma[self.style].step(command_buffer, [state.gradient_for_gamma for state in states])
        self._beta[self.style].step(command_buffer, [state.gradient_for_beta for state in states])
        return self.gamma_and_beta()


# --- the network that is trained --------------------------------------------------------------------------------------


class Transformer:
    """Repaints a picture: three encoding steps, five residual blocks, two decoding steps, and colours from 0 to 1."""

    def __init__(
        self, device: mps.MTLDevice, filters: int = 32, styles: int = 1, learning_rate: float = 1e-3, seed: int = 0
    ) -> None:
        self.convolutions: list[mps.TrainableConvolutionDataSource] = []
        self.normalizations: list[StyleNormalization] = []
        random = np.random.default_rng(seed)

        def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizer:
            return mps.MPSNNOptimizerAdam(device, learning_rate)

        def layer(label: str, size: int, inputs: int, outputs: int, stride: int = 1) -> None:
            weights = random.normal(0.0, np.sqrt(2.0 / (size * size * inputs)), (outputs, size, size, inputs))
            descriptor = mps.MPSCNNConvolutionDescriptor(size, size, inputs, outputs)
            descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = stride
            source = mps.TrainableConvolutionDataSource(descriptor, weights, label=label, optimizer=adam)
            self.convolutions.append(source)
            self.normalizations.append(StyleNormalization(device, outputs, styles, f"{label} norm", learning_rate))

        layer("encode1", 9, 3, filters)
        layer("encode2", 3, filters, 2 * filters, stride=2)
        layer("encode3", 3, 2 * filters, 4 * filters, stride=2)
        for block in range(1, 6):
            layer(f"residual{block}a", 3, 4 * filters, 4 * filters)
            layer(f"residual{block}b", 3, 4 * filters, 4 * filters)
        layer("decode1", 3, 4 * filters, 2 * filters)
        layer("decode2", 3, 2 * filters, filters)
        layer("colours", 9, filters, 3)

    def choose(self, style: int) -> None:
        """Have graphs that are made from now on paint in a style; for one that is there see `reload`."""
        for source in self.normalizations:
            source.style = style

    def reload(self, graph: mps.MPSNNGraph, command_buffer: mps.MTLCommandBuffer) -> None:
        """Give a graph gamma and beta of the chosen style, when the command buffer runs."""
        for kernel in graph.kernels.values():
            if isinstance(kernel, mps.MPSCNNInstanceNormalization):
                source: Any = kernel.data_source
                kernel.reload_gamma_and_beta(command_buffer, source.gamma_and_beta())

    def nodes(self, image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
        """New nodes; the repainted image."""
        layers = iter(zip(self.convolutions, self.normalizations, strict=True))

        def normalized(image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
            weights, scales = next(layers)
            convolution = mps.MPSCNNConvolutionNode(image, weights)
            convolution.padding_policy = EvenPadding(weights.descriptor().kernel_width // 2)
            return mps.MPSCNNInstanceNormalizationNode(convolution.result_image, scales).result_image

        def rectified(image: mps.MPSNNImageNode) -> mps.MPSNNImageNode:
            return mps.MPSCNNNeuronReLUNode(normalized(image)).result_image

        for _ in range(3):
            image = rectified(image)
        for _ in range(5):
            image = mps.MPSNNAdditionNode(normalized(rectified(image)), image).result_image
        for _ in range(2):
            image = rectified(mps.MPSCNNUpsamplingNearestNode(image, 2, 2).result_image)
        return mps.MPSCNNNeuronSigmoidNode(normalized(image)).result_image

    def graph(self, device: mps.MTLDevice) -> mps.MPSNNGraph:
        """A graph that repaints, as it is trained now and in the chosen style."""
        graph = mps.MPSNNGraph(device, self.nodes(mps.MPSNNImageNode(mps.Handle("content"))))
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return graph


# --- the network that looks -------------------------------------------------------------------------------------------


class Features(NamedTuple):
    """An image of features, and its size."""

    image: mps.MPSNNImageNode
    pixels: int
    channels: int


class VGG:
    """The first four blocks of VGG-16, with average pooling; its weights are fixed."""

    def __init__(self, filters: int = 64, seed: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.blocks: list[list[mps.ArrayConvolutionDataSource]] = []
        inputs = 3
        for block, (layers, factor) in enumerate(((2, 1), (2, 2), (3, 4), (3, 8)), 1):
            self.blocks.append([])
            for layer in range(1, layers + 1):
                outputs = filters * factor
                weights = random.normal(0.0, np.sqrt(2.0 / (9 * inputs)), (outputs, 3, 3, inputs))
                biases = random.normal(0.0, 0.1, outputs)
                descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs)
                label = f"conv{block}_{layer}"
                self.blocks[-1].append(mps.ArrayConvolutionDataSource(descriptor, weights, biases, label))
                inputs = outputs

    def nodes(self, image: mps.MPSNNImageNode, size: int) -> list[Features]:
        """New nodes; what the four blocks see in a picture of ``size`` pixels each way."""
        found: list[Features] = []
        for sources in self.blocks:
            if found:
                pooling = mps.MPSCNNPoolingAverageNode(image, 2, 2)
                pooling.padding_policy = HALVED
                image, size = pooling.result_image, size // 2
            for source in sources:
                convolution = mps.MPSCNNConvolutionNode(image, source)
                convolution.training_style = NOT_TRAINED
                image = mps.MPSCNNNeuronReLUNode(convolution.result_image).result_image
            found.append(Features(image, size * size, sources[-1].descriptor().output_feature_channels))
        return found


# --- training ---------------------------------------------------------------------------------------------------------


def squared_distance(
    image: mps.MPSNNImageNode, wanted: mps.MPSNNImageNode, count: int, weight: float
) -> mps.MPSNNImageNode:
    """The mean squared distance of ``count`` numbers, times a weight; one number a picture.

    The reduction MEAN would give the same number, but its gradient is that of the sum: a gradient is never divided.
    """
    wanted.stop_gradient = True  # what is wanted does not learn
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.SUM)
    descriptor.weight = weight / count
    return mps.MPSNNForwardLossNode(image, wanted, descriptor).result_image


def added(images: Sequence[mps.MPSNNImageNode]) -> mps.MPSNNImageNode:
    """A tree of additions."""
    half = len(images) // 2
    return mps.MPSNNAdditionNode(added(images[:half]), added(images[half:])).result_image if half else images[0]


def exported(image: mps.MPSNNImageNode, label: str) -> None:
    """Have encodes hand an image out, in memory that the CPU can read."""
    image.handle = mps.Handle(label)
    image.export_from_graph = image.synchronize_resource = True
    image.image_allocator = mps.MPSImage.default_allocator()


def export_state(
    gradient_node: mps.MPSNNFilterNode,
    node: mps.MPSNNFilterNode | None,
    source: mps.MPSNNImageNode,
    gradient: mps.MPSNNImageNode,
) -> None:
    """A node handler of `training_graph`: have encodes hand out the gradients of a layer's parameters."""
    gradient_node.result_image.handle = source.handle  # as without a handler
    is_trained = isinstance(node, mps.MPSNNTrainableNode) and node.training_style is not NOT_TRAINED
    if node is not None and node.result_state is not None and is_trained:
        node.result_state.export_from_graph = True
        node.result_state.handle = mps.Handle(node.label)


class StyleTransfer:
    """The training of a transformer: pictures, styles and losses."""

    pixel_scale, pixel_mean = 2.0, 1.0  # a trained VGG-16 wants 255, and the mean of each channel of its pictures

    def __init__(
        self,
        device: mps.MTLDevice,
        transformer: Transformer,
        vgg: VGG,
        size: int,
        content_weight: float = 1.0,
        style_weight: float = 10.0,
    ) -> None:
        self.device, self.transformer, self.vgg, self.size = device, transformer, vgg, size
        self.content_weight, self.style_weight = content_weight, style_weight
        values = {"scale": self.pixel_scale, "mean": self.pixel_mean}
        pixels = {name: np.full((size, size, 3), value, np.float32) for name, value in values.items()}
        self.constants = {name: mps.MPSImage.from_numpy(device, array) for name, array in pixels.items()}

    def training_graph(self, *, input_gradient: bool = False, export_states: bool = False) -> mps.MPSNNGraph:
        """A graph that trains; its first result is the repainted picture, the other one the gradient of the content.

        It exports the losses, and with ``export_states`` the gradients of all parameters.
        """
        names = "content", "style", "scale", "mean"
        content, style, scale, mean = (mps.MPSNNImageNode(mps.Handle(name)) for name in names)
        scale.stop_gradient = mean.stop_gradient = True

        def seen(image: mps.MPSNNImageNode) -> list[Features]:
            scaled = mps.MPSNNMultiplicationNode(image, scale).result_image
            return self.vgg.nodes(mps.MPSNNSubtractionNode(scaled, mean).result_image, self.size)

        painted = self.transformer.nodes(content)
        in_painted, in_style, in_content = seen(painted), seen(style), seen(content)

        def gram(features: Features) -> mps.MPSNNImageNode:
            return mps.MPSNNGramMatrixCalculationNode(features.image, 1.0 / features.pixels).result_image

        distances = [
            squared_distance(gram(ours), gram(theirs), ours.channels**2, self.style_weight)
            for ours, theirs in zip(in_painted, in_style, strict=True)
        ]
        style_loss = added(distances)
        third, wanted = in_painted[2], in_content[2]
        numbers = third.pixels * third.channels
        content_loss = squared_distance(third.image, wanted.image, numbers, self.content_weight)
        total = mps.MPSNNAdditionNode(style_loss, content_loss)
        exported(style_loss, "style loss")
        exported(content_loss, "content loss")
        exported(total.result_image, "total loss")
        painted.handle = mps.Handle("painted")

        start = mps.MPSNNInitialGradientNode(total.result_image)
        gradients = total.training_graph(start.result_image, export_state if export_states else None) or []
        for node in gradients if input_gradient else []:  # handles of intermediate images are those of exported ones
            exported(node.result_image, "content")
        graph = mps.MPSNNGraph(
            self.device,
            result_images=[painted, *(node.result_image for node in gradients)],
            results_are_needed=[True, *(input_gradient for _ in gradients)],
        )
        graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
        return graph

    def encode(
        self,
        graph: mps.MPSNNGraph,
        command_buffer: mps.MTLCommandBuffer,
        content: Array,
        style: Array,
        states: list[mps.MPSStateBatch] | None = None,
    ) -> dict[str, mps.MPSImageBatch]:
        """Record one step for a batch of pictures; the results by their handles.

        ``content`` is ``[N, size, size, 3]``, ``style`` one picture; ``states`` receives exported states.
        """
        count = len(content)
        given = {
            "content": mps.MPSImageBatch.from_numpy(self.device, content),
            "style": mps.MPSImageBatch([mps.MPSImage.from_numpy(self.device, style)] * count),
            **{name: mps.MPSImageBatch([image] * count) for name, image in self.constants.items()},
        }
        sources = [given[handle.label() or ""] for handle in graph.source_image_handles]
        intermediates: list[mps.MPSImageBatch] = []
        painted = graph.encode_batch(
            command_buffer, sources, intermediate_images=intermediates, destination_states=states
        )
        assert painted is not None  # the graph was made with this result
        handles = graph.intermediate_image_handles
        found = {handle.label() or "": batch for handle, batch in zip(handles, intermediates, strict=True)}
        return {**found, graph.result_handle.label() or "": painted}


# --- pictures, result -------------------------------------------------------------------------------------------------


def draw_content(random: np.random.Generator, count: int, size: int) -> Array:
    """Grey pictures of smooth hills."""
    down, across = np.mgrid[0:size, 0:size] / size
    waves = random.uniform(1.0, 8.0, (3, count, 1, 1))
    hills = np.sin(waves[0] * across + waves[1] * down + waves[2])
    return np.repeat((0.5 + 0.3 * hills)[..., None], 3, axis=3).astype(np.float32)


def draw_styles(size: int) -> list[Array]:
    """Orange stripes, and a chequered blue."""
    down, across = np.mgrid[0:size, 0:size]
    colours = np.array([[[0.9, 0.5, 0.1], [0.6, 0.2, 0.1]], [[0.1, 0.3, 0.9], [0.1, 0.1, 0.4]]], np.float32)
    return [colours[0, (down + across) // 3 % 2], colours[1, (down // 4 + across // 4) % 2]]


def train(
    training: StyleTransfer, random: np.random.Generator, styles: Sequence[Array], batch: int, steps: int
) -> list[float]:
    """Train on new pictures in each step, one style after the other; the losses."""
    graph = training.training_graph()
    queue = training.device.new_command_queue()
    losses: list[float] = []
    for step in range(steps):
        style = step % len(styles)
        command_buffer = queue.command_buffer()
        training.transformer.choose(style)
        training.transformer.reload(graph, command_buffer)
        content = draw_content(random, batch, training.size)
        found = training.encode(graph, command_buffer, content, styles[style])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        kinds = "total", "style", "content"
        total, of_style, of_content = (float(found[f"{kind} loss"].numpy().mean()) for kind in kinds)
        losses.append(total)
        if step % 20 < len(styles) or step >= steps - len(styles):
            print(
                f"step {step:3}  style {style}  loss {total:8.4f} = style {of_style:8.4f} + content {of_content:7.4f}"
            )
    return losses


def repaint(transformer: Transformer, device: mps.MTLDevice, content: Array, style: int) -> Array:
    """Pictures in a style."""
    transformer.choose(style)
    command_buffer = device.new_command_queue().command_buffer()
    result = transformer.graph(device).encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, content)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert result is not None  # the graph was made with a result
    return result.numpy()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train two styles, then repaint a new picture in each."""
    parser = argparse.ArgumentParser(description="style transfer of two patterns")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--size", type=int, default=32, help="width and height of pictures, a multiple of 8")
    parser.add_argument("--filters", type=int, default=8, help="filters of the first layers")
    parser.add_argument("--steps", type=int, default=120, help="one style each, in turns")
    parser.add_argument("--batch", type=int, default=2)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    device = mps.mtl_device(given.device)
    styles = draw_styles(given.size)
    if given.size % 8 or min(given.size, given.filters, given.batch) < 1 or given.steps < len(styles):
        parser.error("--size must be a multiple of 8, every number at least 1, and a step be there for each style")
    transformer = Transformer(device, given.filters, len(styles), learning_rate=0.03)
    training = StyleTransfer(device, transformer, VGG(given.filters), given.size)
    losses = train(training, random, styles, given.batch, given.steps)
    content = draw_content(random, 1, given.size)
    for index, style in enumerate(styles):
        of_style = losses[index :: len(styles)]
        wanted = style.mean((0, 1))
        found = repaint(transformer, device, content, index).mean((0, 1, 2))
        print(f"style {index}: loss {of_style[0]:.3f} at first, {of_style[-1]:.3f} at last")
        print(f"  mean red, green, blue of a new picture {found.round(2)}, of the style {wanted.round(2)}")


if __name__ == "__main__":
    main()
