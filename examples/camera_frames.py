"""Camera frames: from picture files to a network, and its answer drawn over them.

What it shows:

- picture files as textures: sideways as a camera holds them, upright as `load_textures` gives them;
- an image in the memory of a texture, and `MPSImageLanczosScale` from it to the size of the network;
- normalization as a layer in front of the network, so that training and app do the same;
- a mask scaled up by `MPSImageBilinearScale`, and an overlay in a BGRA texture, as a screen has it, saved as a file.

Usage, in a clone of the repository (needs Pillow)::

    python examples/camera_frames.py [--device auto] [--steps 60] [--frames 12] [--out DIR]

It learns to find a ball in frames of 240x320 pixels that it sees as 24x32. It ends with the overlap of what it found
and what is there, and with how far the framework's Lanczos is from Pillow's, away from the border.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import openmps as mps

Array = NDArray[np.float32]
WIDTH, HEIGHT, STEP = 240, 320, 10
"""Pixels of an upright frame, and how many times as many as of what the network sees."""
MEAN, DEVIATION = (0.45, 0.45, 0.4), (0.2, 0.2, 0.2)
UNORM8, FLOAT32 = mps.MPSImageFeatureChannelFormat.UNORM8, mps.MPSImageFeatureChannelFormat.FLOAT32
ORIENTATION, TURNED_RIGHT = 0x0112, 6


def adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    """An optimizer of its own for each layer."""
    return mps.MPSNNOptimizerAdam(device, 1e-2)


def take(folder: Path, count: int) -> NDArray[np.bool_]:
    """Write frames as a phone does, lying on their side with a note in EXIF; where the ball is in each, upright."""
    random, (y, x) = np.random.default_rng(0), np.mgrid[:HEIGHT, :WIDTH]
    balls = np.empty((count, HEIGHT, WIDTH), np.bool_)
    exif = Image.Exif()
    exif[ORIENTATION] = TURNED_RIGHT
    for index in range(count):
        balls[index] = np.hypot(x - random.uniform(60, 180), y - random.uniform(60, 260)) < random.uniform(30, 50)
        meadow = np.stack([80 + 0 * x, 110 + y / 8, 70 + x / 8], -1) + random.normal(0, 25, (HEIGHT, WIDTH, 3))
        frame = np.where(balls[index, ..., None], meadow * 0.4 + (130, 50, 10), meadow).clip(0, 255).astype(np.uint8)
        Image.fromarray(np.rot90(frame)).save(folder / f"frame{index:02}.jpg", quality=92, exif=exif)
    return balls


def images(folder: Path, device: mps.MTLDevice) -> list[mps.MPSImage]:
    """The frames upright, as images of three channels in the memory of their RGBA textures."""
    return [mps.MPSImage(texture=each, feature_channels=3) for each in mps.load_textures(folder, device)]


def scaled(frames: Sequence[mps.MPSImage], queue: mps.MTLCommandQueue) -> mps.MPSImageBatch:
    """What the network sees of the frames."""
    descriptor = mps.MPSImageDescriptor(FLOAT32, WIDTH // STEP, HEIGHT // STEP, 3)
    batch, command_buffer = mps.MPSImageBatch.allocate(queue.device, descriptor, len(frames)), queue.command_buffer()
    lanczos = mps.MPSImageLanczosScale(queue.device)
    for frame, small in zip(frames, batch, strict=True):
        lanczos.encode(command_buffer, source_image=frame, destination_image=small)
    command_buffer.commit()
    return batch


class Finder:
    """Two layers behind a normalization, for the probability of the ball in each pixel."""

    def __init__(self, device: mps.MTLDevice) -> None:
        diagonal = np.diag(1 / np.array(DEVIATION, np.float32)).reshape(3, 1, 1, 3)
        shift = -np.array(MEAN, np.float32) / np.array(DEVIATION, np.float32)
        point = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 3)
        self._normalization = mps.ArrayConvolutionDataSource(point, diagonal, shift, label="normalization")
        self._layers = [
            mps.TrainableConvolutionDataSource.uniform(
                mps.MPSCNNConvolutionDescriptor(3, 3, inputs, outputs), limit=0.3, bias=0.0, seed=inputs, label=label,
                optimizer=adam,
            )
            for label, inputs, outputs in (("edges", 3, 8), ("ball", 8, 1))
        ]  # fmt: skip
        loss = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SIGMOID_CROSS_ENTROPY, mps.MPSCNNReductionType.MEAN)
        (end,) = mps.MPSCNNLossNode(self._logits(), loss).training_graph()
        self.training = mps.MPSNNGraph(device, result_images=[end.result_image], results_are_needed=[False])
        self.inference = mps.MPSNNGraph(device, mps.MPSCNNNeuronSigmoidNode(self._logits()).result_image)
        self.training.format = self.inference.format = FLOAT32

    def _logits(self) -> mps.MPSNNImageNode:
        normalized = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), self._normalization)
        normalized.training_style = mps.MPSNNTrainingStyle.UPDATE_DEVICE_NONE
        edges = mps.MPSCNNConvolutionNode(normalized.result_image, self._layers[0])
        return mps.MPSCNNConvolutionNode(
            mps.MPSCNNNeuronReLUNode(edges.result_image).result_image, self._layers[1]
        ).result_image

    def learn(self, queue: mps.MTLCommandQueue, seen: mps.MPSImageBatch, balls: NDArray[np.bool_], steps: int) -> None:
        """Train on the same frames, with the part of each pixel that the ball covers as its label."""
        parts = balls.reshape(len(balls), HEIGHT // STEP, STEP, WIDTH // STEP, STEP).mean((2, 4), dtype=np.float32)
        for _ in range(steps):
            command_buffer = mps.MPSCommandBuffer(queue)
            labels = mps.MPSCNNLossLabels.batch(queue.device, parts[..., None])
            self.training.encode_batch(command_buffer, [seen], [labels])
            command_buffer.commit()
        self.inference.reload_from_data_sources()


class Overlay:
    """A frame in which all but the ball's red is darkened where the ball was found: ``frame (1 - 0.7 mask)``."""

    def __init__(self, device: mps.MTLDevice) -> None:
        self._device, self._scale, self._multiply = (
            device,
            mps.MPSImageBilinearScale(device),
            mps.MPSCNNMultiply(device),
        )
        weights = np.array([0.0, -0.7, -0.7], np.float32).reshape(3, 1, 1, 1)
        source = mps.ArrayConvolutionDataSource(
            mps.MPSCNNConvolutionDescriptor(1, 1, 1, 3), weights, np.ones(3, np.float32)
        )
        self._factors = mps.MPSCNNConvolution(device, source)

    def encode(
        self, command_buffer: mps.MTLCommandBuffer, frame: mps.MPSImage, mask: mps.MPSImage
    ) -> tuple[mps.MPSImage, mps.MPSImage]:
        """The frame as it is to be shown, and the mask in its size."""
        screen = mps.MTLTextureDescriptor.texture_2d_descriptor(mps.MTLPixelFormat.BGRA8_UNORM, WIDTH, HEIGHT, False)
        shown = mps.MPSImage(texture=self._device.new_texture(screen), feature_channels=3)
        large = mps.MPSImage(self._device, mps.MPSImageDescriptor(FLOAT32, WIDTH, HEIGHT, 1))
        self._scale.encode(command_buffer, source_image=mask, destination_image=large)
        factors = self._factors.encode(command_buffer, large)
        self._multiply.encode(command_buffer, frame, factors, destination_image=shown)
        return shown, large


def beside_pillow(frame: mps.MPSImage, seen: mps.MPSImage) -> float:
    """How far the framework's Lanczos is from Pillow's, which leaves pixels beyond the border out of the sum."""
    channels = [Image.fromarray(each) for each in np.moveaxis(frame.numpy(), -1, 0)]
    theirs = [each.resize((WIDTH // STEP, HEIGHT // STEP), Image.Resampling.LANCZOS) for each in channels]
    inner = (slice(3, -3), slice(3, -3))
    return max(float(np.abs(np.asarray(each) - seen.numpy()[..., c])[inner].max()) for c, each in enumerate(theirs))


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Take frames, learn, look at other frames, and draw what was found."""
    parser = argparse.ArgumentParser(description="A ball found in camera frames")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--out", type=Path, help="where pictures go; a folder of the system's for temporary files")
    given = parser.parse_args(arguments)
    device = mps.mtl_device(given.device)
    queue, out = device.new_command_queue(), given.out or Path(tempfile.mkdtemp())
    taken, drawn = out / "taken", out / "drawn"
    for folder in (taken, drawn):
        folder.mkdir(parents=True, exist_ok=True)
    balls = take(taken, given.frames)
    frames, half = images(taken, device), given.frames // 2
    seen = scaled(frames, queue)
    finder, overlay = Finder(device), Overlay(device)
    finder.learn(queue, seen[:half], balls[:half], given.steps)
    command_buffer = queue.command_buffer()
    masks = finder.inference.encode_batch(command_buffer, [seen[half:]])
    assert masks is not None  # the graph was made with a result
    results = [overlay.encode(command_buffer, each, mask) for each, mask in zip(frames[half:], masks, strict=True)]
    command_buffer.commit()
    for frame, (shown, _) in zip(frames[half:], results, strict=True):
        mps.save_texture(shown, drawn / f"{Path(str(frame.texture.label)).stem}.png")
    found = np.stack([large.numpy()[..., 0] > 0.5 for _, large in results])
    overlap = float((found & balls[half:]).sum() / (found | balls[half:]).sum())
    difference = beside_pillow(frames[0], seen[0])
    print(f"overlap {overlap:.0%}; Lanczos differs from Pillow's by {difference:.1e}; pictures in {drawn}")
    return overlap, difference


if __name__ == "__main__":
    main()
