"""Nodes that move, pad and resample pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from encoding import Bench, finish, numbers, run
from node_cases.case import Array, Case, NotExpressible, numeric, planar
from node_cases.windows import run as run_into
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNSubPixelConvolutionDescriptor
from openmps.kernels.grid_sample import MPSNNGridSample
from openmps.kernels.image_scale import MPSImageBilinearScale
from openmps.kernels.pad import MPSNNPad
from openmps.kernels.reshape import MPSNNReshape
from openmps.kernels.resize import MPSNNCropAndResizeBilinear, MPSNNResizeBilinear
from openmps.kernels.slice import MPSNNSlice
from openmps.kernels.upsampling import MPSCNNUpsamplingBilinear, MPSCNNUpsamplingNearest
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.types import MPSImageCoordinate, MPSImageEdgeMode, MPSOffset, MPSOrigin, MPSRegion, MPSSize

EDGE_MODES = {
    "constant": MPSImageEdgeMode.CONSTANT,
    "edge": MPSImageEdgeMode.CLAMP,
    "reflect": MPSImageEdgeMode.MIRROR,
}


def pad(case: Case, bench: Bench) -> list[Array]:
    mode = case.get("mode", "constant")
    if mode not in EDGE_MODES:
        raise NotExpressible(f"{mode}: no edge mode reads from the other side")
    x, pads, fill, axes = planar(case.tensor(0)), case.tensor(1), case.input(2), case.input(3)
    listed = [int(axis) % x.ndim for axis in axes] if axes is not None else list(range(x.ndim))
    before, behind = np.zeros(4, int), np.zeros(4, int)
    before[listed], behind[listed] = pads[: len(listed)], pads[len(listed) :]
    if before[0] or behind[0]:
        raise NotExpressible("pads along the batch: images stay as many")
    kernel = MPSNNPad(bench.device, _coordinate(before), _coordinate(behind))
    kernel.edge_mode = EDGE_MODES[mode]
    kernel.fill_value = 0.0 if fill is None else float(fill.ravel()[0])
    return [run(bench, kernel, [bench.image(x)])]


def _coordinate(sizes: Array) -> MPSImageCoordinate:
    return MPSImageCoordinate(int(sizes[3]), int(sizes[2]), int(sizes[1]))


def depth_to_space(case: Case, bench: Bench) -> list[Array]:
    """Sub-pixel convolution with the identity; its order is block-major."""
    if case.get("mode", "DCR") != "DCR":
        raise NotExpressible("column-row-depth order: sub-pixel convolution is block-major")
    x, factor = planar(case.tensor(0)), int(case.attributes["blocksize"])
    channels = x.shape[1]
    descriptor = MPSCNNSubPixelConvolutionDescriptor(1, 1, channels, channels)
    descriptor.sub_pixel_scale_factor = factor
    identity = np.eye(channels, dtype=np.float32).reshape(channels, 1, 1, channels)
    kernel = MPSCNNConvolution(bench.device, weights=ArrayConvolutionDataSource(descriptor, identity))
    return [run(bench, kernel, [bench.image(x)])]


def reshape(case: Case, bench: Bench) -> list[Array]:
    """The last axis is the channels: then the framework's order, channels fastest, is ONNX's."""
    x, shape = numeric(case.tensor(0)), case.outputs[0].shape
    width, channels = (1, *shape)[-2:]
    height = int(np.prod(shape[:-2]))
    kernel = MPSNNReshape(bench.device)
    source = x.reshape(1, -1, *((1, 1, *x.shape)[-2:])).transpose(0, 3, 1, 2)
    found = run_into(bench, kernel, source, height, width, channels)
    return [found[0].transpose(1, 2, 0).reshape(shape)]


def slice_(case: Case, bench: Bench) -> list[Array]:
    """Of ``[H, W, C]``."""
    x, shape = numeric(case.tensor(0)), case.outputs[0].shape
    starts, axes, steps = case.tensor(1), case.input(3), case.input(4)
    if steps is not None and (steps != 1).any():
        raise NotExpressible("a step or a turned order: a slice is every pixel and channel of a part")
    if 0 in shape:
        raise NotExpressible("an empty tensor: an image has at least one pixel and one channel")
    listed = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
    first = np.zeros(3, int)
    for axis, start in zip(listed, starts, strict=False):
        first[axis] = min(int(start) + (x.shape[axis] if start < 0 else 0), x.shape[axis])
    kernel = MPSNNSlice(bench.device)
    kernel.offset = MPSOffset(int(first[1]), int(first[0]), 0)
    kernel.source_feature_channel_offset = int(first[2])
    kernel.source_feature_channel_max_count = shape[2]
    found = run_into(bench, kernel, x.transpose(2, 0, 1)[None], shape[0], shape[1], shape[2])
    return [found[0].transpose(1, 2, 0)]


# --- resampling ------------------------------------------------------------------------------------------------------


def resize(case: Case, bench: Bench) -> list[Array]:
    x, mode = planar(case.tensor(0)), case.get("mode", "nearest")
    height, width = case.outputs[0].shape[2:]
    where = case.get("coordinate_transformation_mode", "half_pixel")
    if case.get("antialias", 0):
        raise NotExpressible("a filter that widens when it shrinks, with ONNX's weights at the border")
    if mode == "cubic":
        raise NotExpressible("cubic interpolation: the framework has nearest, bilinear and Lanczos")
    if mode == "nearest":
        return [_nearest(case, bench, x, height, width, where)]
    scales = case.input(2)
    if scales is not None and scales.size and (scales[-2:] * x.shape[2:] % 1).any():
        raise NotExpressible("a scale that is not the ratio of the sizes: the kernels go by the sizes")
    if where == "align_corners":
        return [run(bench, MPSNNResizeBilinear(bench.device, width, height, True), [bench.image(x)])]
    if where == "tf_crop_and_resize":
        return [_cropped(case, bench, x, height, width)]
    if where == "half_pixel":
        return [_scaled(bench, x, height, width)]
    raise NotExpressible(f"{where}: the framework has asymmetric, half-pixel and aligned corners")


def _nearest(case: Case, bench: Bench, x: Array, height: int, width: int, where: str) -> Array:
    (h, w), rounding = x.shape[2:], case.get("nearest_mode", "round_prefer_floor")
    same = (where == "asymmetric" and rounding == "floor") or (where == "half_pixel" and "round" in rounding)
    if not same:
        raise NotExpressible(f"nearest with {where} and {rounding}: upsampling is the pixel below, index // factor")
    if height % h or width % w:
        raise NotExpressible("nearest by a factor that is not whole: upsampling repeats each pixel")
    return run(bench, MPSCNNUpsamplingNearest(bench.device, width // w, height // h), [bench.image(x)])


def _cropped(case: Case, bench: Bench, x: Array, height: int, width: int) -> Array:
    if case.get("extrapolation_value", 0.0):
        raise NotExpressible("an extrapolation value: outside the image the kernel gives 0")
    box = case.tensor(1).astype(float).tolist()
    axes = case.get("axes", list(range(len(box) // 2)))
    start, end = (dict(zip(axes, part, strict=True)) for part in (box[: len(axes)], box[len(axes) :]))
    origin = MPSOrigin(start[3], start[2], 0.0)
    size = MPSSize(end[3] - start[3], end[2] - start[2], 1.0)
    kernel = MPSNNCropAndResizeBilinear(bench.device, width, height, 1, [MPSRegion(origin, size)])
    return run(bench, kernel, [bench.image(x)])


def _scaled(bench: Bench, x: Array, height: int, width: int) -> Array:
    destination = bench.empty((*x.shape[:2], height, width))
    buffer = bench.command_buffer()
    MPSImageBilinearScale(bench.device).encode(buffer, bench.image(x), destination)
    finish(buffer)
    return numbers(destination)


def upsample(case: Case, bench: Bench) -> list[Array]:
    x, scales = planar(case.tensor(0)), [int(scale) for scale in case.tensor(1)]
    kinds: dict[str, Any] = {"nearest": MPSCNNUpsamplingNearest, "linear": MPSCNNUpsamplingBilinear}
    kernel = kinds[case.get("mode", "nearest")](bench.device, scales[3], scales[2])
    return [run(bench, kernel, [bench.image(x)])]


def grid_sample(case: Case, bench: Bench) -> list[Array]:
    if case.tensor(0).ndim > 4:
        raise NotExpressible("three spatial axes: images have two")
    mode = case.get("mode", "linear")
    if mode not in ("linear", "bilinear"):
        raise NotExpressible(f"{mode} sampling: the kernel is bilinear")
    if not case.get("align_corners", 0):
        raise NotExpressible("half-pixel corners: the kernel aligns corners")
    outside = {"zeros": MPSImageEdgeMode.ZERO, "border": MPSImageEdgeMode.CLAMP}
    border = case.get("padding_mode", "zeros")
    if border not in outside:
        raise NotExpressible(f"{border} outside: the edge modes of this kernel are zero and clamp")
    kernel = MPSNNGridSample(bench.device)
    kernel.primary_edge_mode = outside[border]
    grid = numeric(case.tensor(1)).transpose(0, 3, 1, 2)
    return [run(bench, kernel, [bench.image(planar(case.tensor(0))), bench.image(grid)])]
