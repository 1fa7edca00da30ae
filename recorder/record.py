"""Records what Metal Performance Shaders of this machine answers to the list of cases of openmps, through PyObjC.

    python recorder/record.py [--list cases.json] [--out goldens]                      on a Mac, with PyObjC and NumPy
    python -m openmps.pyobjc recorder/record.py --together 100                          anywhere, with openmps

The same file runs in both places, and writes what recorder/record.swift writes: OUT/<system>-<gpu>/recording.json for
each GPU, with raw numbers, the machine, and the classes that have answered. Each case runs in a process of its own, as
the framework ends a process that misuses it, and how it ended is an answer, too; `--together` has so many in one.
Before anything is written, controls must have the answers that are known, and planted faults be seen.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import Metal
import MetalPerformanceShaders as MPS
import numpy as np
import objc
from Foundation import NSObject

LAYOUT = MPS.MPSDataLayoutHeightxWidthxFeatureChannels
FLOAT32 = MPS.MPSImageFeatureChannelFormatFloat32
FORMATS = {
    MPS.MPSImageFeatureChannelFormatUnorm8: (np.uint8, 255),
    MPS.MPSImageFeatureChannelFormatUnorm16: (np.uint16, 65535),
    MPS.MPSImageFeatureChannelFormatFloat16: (np.float16, 1),
    FLOAT32: (np.float32, 1),
}
"""How elements of an image are stored, and what 1 is then."""
_STATE_ROWS = {
    "MPSCNNKernel": ("encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:", 4),
    "MPSCNNBinaryKernel": (
        "encodeToCommandBuffer:primaryImage:secondaryImage:destinationState:destinationStateIsTemporary:",
        5,
    ),
}
"""States that come back through pointers, of which PyObjC's own metadata has no direction."""


_OF_WINDOWS = {
    b"MPSImageConvolution": b"initWithDevice:kernelWidth:kernelHeight:weights:",
    b"MPSImageDilate": b"initWithDevice:kernelWidth:kernelHeight:values:",
}
"""Initializers that take a number of each place of a window."""


def register():
    """Say what PyObjC's metadata leaves out."""
    row = objc.registerMetaDataForSelector
    row(b"NSObject", b"weights", {"required": True, "retval": {"type": b"^v"}})
    row(b"MPSNNCropAndResizeBilinear", b"initWithDevice:resizeWidth:resizeHeight:numberOfRegions:regions:",
        {"arguments": {6: {"type_modifier": b"n", "c_array_length_in_arg": 5}}})  # fmt: skip
    row(b"MPSCNNNeuronPReLU", b"initWithDevice:a:count:",
        {"arguments": {3: {"type_modifier": b"n", "c_array_length_in_arg": 4}}})  # fmt: skip
    for name, selector in _OF_WINDOWS.items():
        row(name, selector, {"arguments": {5: {"type_modifier": b"n", "c_array_of_variable_length": True}}})
    for name, (selector, place) in _STATE_ROWS.items():
        arguments = {place: {"type_modifier": b"o"}, place + 1: {"type": b"Z"}}
        row(name.encode(), selector.encode(), {"arguments": arguments})


class Unsupported(Exception):
    """A word of the list that this recorder does not know."""


# --- numbers ----------------------------------------------------------------------------------------------------------

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def array_of(given, shape=None):
    """The array that a case describes: listed numbers, or drawn ones."""
    shape = tuple(given["shape"] if shape is None else shape)
    if "numbers" in given:
        listed = [_NOT_FINITE[each] if isinstance(each, str) else each for each in given["numbers"]]
        return np.array(listed, np.float32).reshape(shape)
    places = np.arange(given["seed"], given["seed"] + math.prod(shape), dtype=np.int64) % 1013
    return ((places**3 % 1013 + given["first"]) / given["over"]).astype(np.float32).reshape(shape)


def written(array):
    """An array as an answer holds it."""
    return {"shape": [*array.shape], "numbers": [_written_number(float(each)) for each in array.reshape(-1)]}


def _written_number(value):
    return value if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"


# --- objects ----------------------------------------------------------------------------------------------------------


class RecorderHandle(NSObject):
    """The handle of a graph's source, by its place."""

    def label(self):
        return f"source {self.place}"


class RecorderSource(NSObject):
    """What data sources have in common."""

    def load(self):
        return True

    def purge(self):
        pass

    def label(self):
        return None

    def copyWithZone_device_(self, zone, device):
        return self


class RecorderWeights(RecorderSource):
    """The data source of a convolution."""

    def dataType(self):
        return MPS.MPSDataTypeUInt32 if self.numbers.dtype == np.uint32 else MPS.MPSDataTypeFloat32

    def descriptor(self):
        return self.made

    def weights(self):
        return self.numbers.ctypes.data

    def biasTerms(self):
        return objc.NULL if self.biases is None else self.biases

    def updateWithGradientState_sourceState_(self, gradient, source):
        self.shown = gradient
        return True


class RecorderRows(RecorderSource):
    """The data source of a batch, instance or group normalization."""

    def numberOfFeatureChannels(self):
        return len(self.given["gamma"])

    def numberOfGroups(self):
        return self.groups

    def setNumberOfGroups_(self, value):
        pass

    def gamma(self):
        return self.given["gamma"]

    def beta(self):
        return self.given["beta"]

    def mean(self):
        return self.given["mean"]

    def variance(self):
        return self.given["variance"]

    def epsilon(self):
        return self.small


def keywords(name):
    """The keywords of an initializer or factory, by its Python name: ``initWithDevice_a_`` has device and a."""
    first, *others = name.split("_")[:-1]
    word = first.partition("With")[2]
    return (word if word[1:2].isupper() else word[:1].lower() + word[1:], *others)


def create(kind, given):
    """An object by the initializer or factory with these keywords and the fewest others, which are nil then."""
    names = [name for name in dir(kind) if "With" in name.partition("_")[0] and given.keys() <= set(keywords(name))]
    if not names:
        raise Unsupported(f"{kind.__name__} of {', '.join(given)}")
    name = min(names, key=lambda each: (len(keywords(each)), not each.startswith("init"), each))
    receiver = kind.alloc() if name.startswith("init") else kind
    return getattr(receiver, name)(*(given.get(each) for each in keywords(name)))


def _convolution(maker, given):
    found = RecorderWeights.alloc().init()
    found.made, found.shown = maker.object(given["descriptor"], on_device=False), None
    found.numbers = np.array(given["words"], np.uint32) if "words" in given else array_of(given["weights"])
    found.biases = array_of(given["biases"]).ravel().tolist() if "biases" in given else None
    maker.layers.append(found)
    return found


def _normalization(maker, given):
    found = RecorderRows.alloc().init()
    rows = ("gamma", "beta", "mean", "variance")
    found.given = {name: array_of(given[name]).ravel().tolist() for name in rows if name in given}
    found.small, found.groups = given["epsilon"], given.get("groups", 1)
    return found


def _padding(maker, given):
    asked = given["padding"]
    kind = MPS.MPSNNDefaultPadding
    return kind.paddingWithMethod_(asked) if isinstance(asked, int) else getattr(kind, asked)()


def _region(maker, given):
    x, y, z, *size = (value % 2**64 for value in given["region"])  # -1 stands for all bits
    return (x, y, z), tuple(size)


def _part(maker, given):
    x, y, width, height = given["part"]
    return (x, y, 0.0), (width, height, 1.0)


_DISTRIBUTION = MPS.MPSMatrixRandomDistributionDescriptor
_FORMS = {
    "class": lambda maker, given: maker.object(given, on_device=False),
    "padding": _padding,
    "descriptor": _convolution,
    "gamma": _normalization,
    "coordinate": lambda maker, given: tuple(given["coordinate"]),
    "region": _region,
    "origin": lambda maker, given: tuple(given["origin"]),
    "size": lambda maker, given: tuple(given["size"]),
    "part": _part,
    "offset": lambda maker, given: tuple(given["offset"]),
    "histogram": lambda maker, given: tuple(
        tuple(each) if isinstance(each, list) else each for each in given["histogram"]
    ),
    "uniform": lambda maker, given: _DISTRIBUTION.uniformDistributionDescriptorWithMinimum_maximum_(*given["uniform"]),
    "normal": lambda maker, given: _DISTRIBUTION.normalDistributionDescriptorWithMean_standardDeviation_(
        *given["normal"]
    ),
    "shape": lambda maker, given: array_of(given).ravel().tolist(),
    "source": lambda maker, given: maker.sources[given["source"]],
    "node": lambda maker, given: maker.nodes[given["node"]].resultImage(),
}
"""What a mapping in the place of a value means, by a name that it has."""
_AS_DATA = {"anchorBoxes", "fillValueArray"}
"""Arguments that are NSData."""
_TERMS = ("outputBiasTerms", "outputScaleTerms", "inputBiasTerms", "inputScaleTerms")


class Maker:
    """Makes what the entries of one case describe."""

    def __init__(self, device, sources=()):
        self.device, self.sources, self.nodes, self.layers = device, sources, [], []

    def value(self, given):
        """What stands in a case for an argument or a property."""
        if isinstance(given, list):
            return [self.value(each) for each in given]
        if isinstance(given, dict):
            return next(make for name, make in _FORMS.items() if name in given)(self, given)
        return _NOT_FINITE[given] if isinstance(given, str) else given

    def object(self, given, on_device=True):
        """An object of ``class``, made with ``arguments``, its ``properties`` set."""
        name, arguments = given["class"], given["arguments"]
        made = _SPECIAL.get(name, _ordinary)(self, name, arguments, on_device)
        if made is None:
            raise Unsupported(f"the class {name}")
        for key, each in given.get("properties", {}).items():
            *outer, last = key.split(".")
            thing = made
            for part in outer:
                thing = getattr(thing, part[:1].lower() + part[1:] if part[1:2].islower() else part)()
            getattr(thing, f"set{last[:1].upper()}{last[1:]}_")(self.value(each))
        return made


def _ordinary(maker, name, arguments, on_device):
    kind = getattr(MPS, name, None)
    if kind is None:
        raise Unsupported(f"the class {name}")
    values = {key: _argument(maker, key, each) for key, each in arguments.items()}
    if "Binary" in name and "type" in values:
        values = {**dict.fromkeys(_TERMS), **values}
    if name == "MPSCNNNeuronPReLU":
        values["count"] = len(values["a"])
    return create(kind, {"device": maker.device, **values} if on_device else values)


def _argument(maker, key, given):
    return array_of(given).tobytes() if key in _AS_DATA else maker.value(given)


def _neuron(maker, name, arguments, on_device):
    kind = MPS.MPSNNNeuronDescriptor
    if "data" in arguments:
        return kind.cnnNeuronPReLUDescriptorWithData_noCopy_(array_of(arguments["data"]).tobytes(), False)
    return kind.cnnNeuronDescriptorWithType_a_b_c_(*(arguments[each] for each in ("type", "a", "b", "c")))


def _boxes(maker, name, arguments, on_device):
    values = {key: _argument(maker, key, each) for key, each in arguments.items()}
    return create(MPS.MPSCNNYOLOLossDescriptor, {**values, "numberOfAnchorBoxes": arguments["anchorBoxes"]["shape"][0]})


_SPECIAL = {
    "MPSNNNeuronDescriptor": _neuron,
    "MPSCNNYOLOLossDescriptor": _boxes,
    "MPSMatrixRandomDistributionDescriptor": lambda *_: _DISTRIBUTION.defaultDistributionDescriptor(),
}
"""Classes whose arguments stand otherwise in the list."""

# --- images and buffers -----------------------------------------------------------------------------------------------


def empty(device, width, height, channels, form=FLOAT32):
    """An image of zeros."""
    described = MPS.MPSImageDescriptor.imageDescriptorWithChannelFormat_width_height_featureChannels_(
        form, width, height, channels
    )
    return MPS.MPSImage.alloc().initWithDevice_imageDescriptor_(device, described)


def image(device, given, shape=None):
    """A source image; Float32 unless the entry names another format."""
    numbers, form = array_of(given, shape), given.get("format", FLOAT32)
    height, width, channels = numbers.shape
    dtype, one = FORMATS[form]
    made = empty(device, width, height, channels, form)
    stored = numbers if one == 1 else np.rint(numbers * one)
    made.writeBytes_dataLayout_imageIndex_(np.ascontiguousarray(stored.astype(dtype)), LAYOUT, 0)
    return made


def pixels(made):
    """``[height, width, channels]`` of an image, ``[images, …]`` of one that holds several."""
    dtype, one = FORMATS[made.featureChannelFormat()]
    count = made.numberOfImages()
    found = np.zeros((count, made.height(), made.width(), made.featureChannels()), dtype)
    for place, each in enumerate(found):
        made.readBytes_dataLayout_imageIndex_(each, LAYOUT, place)
    numbers = found.astype(np.float32) / np.float32(one)
    return numbers if count > 1 else numbers[0]


def floats(buffer):
    """The numbers of a buffer."""
    if buffer is None:
        raise Unsupported("a state without that buffer")
    return written(np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.float32))


def finish(command_buffer, made=()):
    """Have all that was encoded computed, and what is read there."""
    for each in made:
        each.synchronizeOnCommandBuffer_(command_buffer)
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    if command_buffer.error() is not None:
        raise ValueError(str(command_buffer.error()))


def readable(kernel):
    """A kernel whose encodes return images that can be read."""
    kernel.setDestinationImageAllocator_(MPS.MPSImage.defaultAllocator())
    return kernel


# --- kinds of cases ---------------------------------------------------------------------------------------------------


def answered(values, things):
    """An answer, with the classes that gave it."""
    return {"values": values, "classes": [type(each).__name__ for each in things]}


def loss_data(given):
    """Labels, or weights of labels."""
    numbers = array_of(given)
    height, width, channels = numbers.shape
    return MPS.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData_layout_size_(
        numbers.tobytes(), LAYOUT, (width, height, channels)
    )


def labels_of(device, given):
    """The labels of a loss."""
    weights = loss_data(given["labelWeights"]) if "labelWeights" in given else None
    return MPS.MPSCNNLossLabels.alloc().initWithDevice_lossImageSize_labelsDescriptor_weightsDescriptor_(
        device, tuple(given["lossImageSize"]), loss_data(given["labels"]), weights
    )


_BATCH = "encodeBatchToCommandBuffer_"


def _lost(kernel, given, sources, command_buffer):
    """A loss, or the gradient of one: the result, and the image of the loss."""
    device = command_buffer.device()
    if "lossImageSize" in given:
        labels = labels_of(device, given)
        made = kernel.encodeToCommandBuffer_sourceImage_labels_(command_buffer, sources[0], labels)
        return made, labels.lossImage()
    parts = [[image(device, given[each])] if each in given else None for each in ("labels", "labelWeights")]
    if len(sources) == 1:
        encode = getattr(kernel, f"{_BATCH}sourceImages_labels_weights_destinationStates_destinationStateIsTemporary_")
        return encode(command_buffer, [sources[0]], *parts, None, False)[0], None
    encode = getattr(kernel, f"{_BATCH}sourceGradients_sourceImages_labels_weights_sourceStates_")
    return encode(command_buffer, [sources[0]], [sources[1]], *parts, None)[0], None


def _forward(kernel, given, sources, command_buffer):
    """The result, and the state where gradients follow."""
    keeps = bool(given.get("gradients"))
    if "destination" in given:
        target = empty(command_buffer.device(), *given["destination"])
        if not keeps:
            kernel.encodeToCommandBuffer_sourceImage_destinationImage_(command_buffer, sources[0], target)
            return target, None
        state = kernel.resultStateForSourceImage_sourceStates_destinationImage_(sources[0], None, target)
        kernel.encodeToCommandBuffer_sourceImage_destinationState_destinationImage_(
            command_buffer, sources[0], state, target
        )
        return target, state
    words = "sourceImage_" if len(sources) == 1 else "primaryImage_secondaryImage_"
    encode = getattr(
        kernel, f"encodeToCommandBuffer_{words}{'destinationState_destinationStateIsTemporary_' if keeps else ''}"
    )
    made = encode(command_buffer, *sources, *(None, False) * keeps)
    return made if keeps else (made, None)


def _gradient(maker, given, sources, result, state, command_buffer):
    kernel = readable(maker.object(given["kernel"]))
    shape = [result.height(), result.width(), result.featureChannels()]
    incoming = image(maker.device, given["incoming"], shape)
    secondary = result if given["secondary"] == "result" else sources[given["secondary"]]
    if state is None:  # classes whose forward kernel leaves none
        made = kernel.encodeToCommandBuffer_primaryImage_secondaryImage_(command_buffer, incoming, secondary)
    else:
        made = kernel.encodeToCommandBuffer_sourceGradient_sourceImage_gradientState_(
            command_buffer, incoming, secondary, state
        )
    return kernel, made


def _kernel(maker, given):
    kernel = readable(maker.object(given["kernel"]))
    sources = [image(maker.device, each) for each in given["sources"]]
    command_buffer = maker.device.newCommandQueue().commandBuffer()
    state = loss = None
    if "labels" in given:
        result, loss = _lost(kernel, given, sources, command_buffer)
    else:
        result, state = _forward(kernel, given, sources, command_buffer)
    back = [_gradient(maker, each, sources, result, state, command_buffer) for each in given.get("gradients", ())]
    gradients = [made for _, made in back]
    finish(command_buffer, [each for each in (result, *gradients, loss, state) if each is not None])
    values = {}
    for name in given["read"]:
        if name == "gradients":
            values[name] = [written(pixels(each)) for each in gradients]
        elif name.startswith("gradientFor"):
            values[name] = floats(getattr(state, name)())
        else:
            values[name] = _of_image(name, loss if name == "loss" else result)
    values.update((name, shown(kernel, name)) for name in given.get("shows", ()))
    return answered(values, [kernel, *(each for each, _ in back)])


def _of_image(name, made):
    if name in ("result", "loss"):
        return written(pixels(made))
    if name == "size":
        return [made.width(), made.height(), made.featureChannels()]
    if name == "pixelFormat":
        return made.pixelFormat()
    raise Unsupported(f"to read {name}")


def shown(thing, name):
    """What a property shows."""
    value = getattr(thing, name)()
    if name == "padding":
        return value.paddingMethod()
    return _written_number(value) if isinstance(value, float) else value if isinstance(value, int) else [*value]


def _object(maker, given):
    form = given["object"]
    if "class" in form:
        device_free = form["class"].endswith(("Descriptor", "Node"))
        made = maker.object(form, on_device=not device_free)
    else:
        made = maker.value(form)
    return answered({name: shown(made, name) for name in given["shows"]}, [made])


def _nodes(device, given):
    handles = []
    for place in range(len(given["sources"])):
        handle = RecorderHandle.alloc().init()
        handle.place = place
        handles.append(MPS.MPSNNImageNode.nodeWithHandle_(handle))
    maker = Maker(device, handles)
    for each in given["nodes"]:
        maker.nodes.append(maker.object(each, on_device=False))
    return maker


def _graph(maker, given):
    nodes = _nodes(maker.device, given)
    graph = MPS.MPSNNGraph.alloc().initWithDevice_resultImage_resultImageIsNeeded_(
        maker.device, nodes.nodes[-1].resultImage(), True
    )
    if "format" in given:
        graph.setFormat_(given["format"])
    readable(graph)
    command_buffer = maker.device.newCommandQueue().commandBuffer()
    order = [handle.place for handle in graph.sourceImageHandles()]
    sources = [image(maker.device, given["sources"][place]) for place in order]
    made = graph.encodeToCommandBuffer_sourceImages_(command_buffer, sources)
    finish(command_buffer, [made])
    states = graph.sourceStateHandles()
    apart = {"sourceOrder": order, "sourceStateCount": -1 if states is None else len(states)}
    values = {name: apart[name] if name in apart else _of_image(name, made) for name in given["read"]}
    return answered(values, nodes.nodes)


def _training(maker, given):
    """A training graph over one batch, whose layers are shown gradients when all is computed."""
    nodes, device = _nodes(maker.device, given), maker.device
    end = nodes.nodes[-1].trainingGraphWithSourceGradient_nodeHandler_(None, None)[0]
    graph = MPS.MPSNNGraph.alloc().initWithDevice_resultImage_resultImageIsNeeded_(device, end.resultImage(), True)
    graph.setFormat_(given["format"])
    readable(graph)
    batch = [image(device, {"numbers": each.ravel().tolist()}, each.shape) for each in array_of(given["sources"][0])]
    labels = []
    for each in array_of(given["labels"]):
        entry = {"shape": [*each.shape], "numbers": each.ravel().tolist()}
        labels.append(labels_of(device, {"labels": entry, "lossImageSize": given["lossImageSize"]}))
    command_buffer = device.newCommandQueue().commandBuffer()
    made = graph.encodeBatchToCommandBuffer_sourceImages_sourceStates_(command_buffer, [batch], [labels])
    losses = [each.lossImage() for each in labels]
    finish(command_buffer, [*made, *losses])
    values = {}
    for name in given["read"]:
        if name in ("result", "loss"):
            values[name] = written(np.stack([pixels(each) for each in (made if name == "result" else losses)]))
        else:
            values[name] = [floats(getattr(layer.shown, name)()) for layer in nodes.layers]
    return answered(values, nodes.nodes)


def matrix(device, rows, columns, kind, numbers=None):
    """A matrix, and its elements as an array in the memory of its buffer."""
    row_bytes = MPS.MPSMatrixDescriptor.rowBytesForColumns_dataType_(columns, kind)
    described = MPS.MPSMatrixDescriptor.matrixDescriptorWithRows_columns_rowBytes_dataType_(
        rows, columns, row_bytes, kind
    )
    buffer = device.newBufferWithLength_options_(rows * row_bytes, Metal.MTLResourceStorageModeShared)
    dtype = np.uint32 if kind == MPS.MPSDataTypeUInt32 else np.float32
    held = np.frombuffer(buffer.contents().as_buffer(buffer.length()), dtype)
    seen = held.reshape(rows, row_bytes // 4)[:, :columns]
    if numbers is not None:
        seen[:] = numbers
    return MPS.MPSMatrix.alloc().initWithBuffer_descriptor_(buffer, described), seen


_OF_MATRICES = {
    "MPSMatrixSoftMax": "encodeToCommandBuffer_inputMatrix_resultMatrix_",
    "MPSMatrixLogSoftMax": "encodeToCommandBuffer_inputMatrix_resultMatrix_",
    "MPSMatrixSoftMaxGradient": "encodeToCommandBuffer_gradientMatrix_forwardOutputMatrix_resultMatrix_",
    "MPSMatrixLogSoftMaxGradient": "encodeToCommandBuffer_gradientMatrix_forwardOutputMatrix_resultMatrix_",
    "MPSMatrixMultiplication": "encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_",
    "MPSMatrixSolveTriangular": "encodeToCommandBuffer_sourceMatrix_rightHandSideMatrix_solutionMatrix_",
    "MPSMatrixSolveCholesky": "encodeToCommandBuffer_sourceMatrix_rightHandSideMatrix_solutionMatrix_",
}


def _matrices(maker, given):
    kernel, kind = maker.object(given["kernel"]), MPS.MPSDataTypeFloat32
    arrays = [array_of(each) for each in given["sources"]]
    sources = [matrix(maker.device, *each.shape, kind, each)[0] for each in arrays]
    initial = array_of(given["initial"]) if "initial" in given else 0
    result, seen = matrix(maker.device, *given["matrix"], kind, initial)
    command_buffer = maker.device.newCommandQueue().commandBuffer()
    encode = _OF_MATRICES.get(given["kernel"]["class"])
    if encode is None:
        raise Unsupported(f"the class {given['kernel']['class']} of {len(sources)} matrices")
    getattr(kernel, encode)(command_buffer, *sources, result)
    finish(command_buffer)
    return answered({"matrix": written(np.array(seen))}, [kernel])


def _random(maker, given):
    kernel = maker.object(given["kernel"])
    result, seen = matrix(maker.device, *given["matrix"], given["kernel"]["arguments"]["destinationDataType"])
    command_buffer = maker.device.newCommandQueue().commandBuffer()
    kernel.encodeToCommandBuffer_destinationMatrix_(command_buffer, result)
    finish(command_buffer)
    return answered({"matrix": written(np.array(seen))}, [kernel])


def _spacing(maker, given):
    advise = MPS.MPSMatrixDescriptor.rowBytesForColumns_dataType_
    return answered({"rowBytes": [advise(columns, given["dataType"]) for columns in given["columns"]]}, [])


def _counts_in(device, given):
    """A buffer of counts, and its numbers."""
    numbers = array_of(given).astype(np.uint32).ravel()
    buffer = device.newBufferWithLength_options_(numbers.nbytes, Metal.MTLResourceStorageModeShared)
    held = np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.uint32)
    held[:] = numbers
    return buffer, held


_TRANSFORM = "encodeTransformToCommandBuffer_sourceTexture_"
_TRANSFORMS = {
    1: f"{_TRANSFORM}histogram_histogramOffset_",
    2: f"{_TRANSFORM}sourceHistogram_sourceHistogramOffset_desiredHistogram_desiredHistogramOffset_",
}
"""How tables are made of histograms, by how many there are."""


def _filter(maker, given):
    device, kernel = maker.device, maker.object(given["kernel"])
    sources = [image(device, each) for each in given["sources"]]
    command_buffer = device.newCommandQueue().commandBuffer()
    if "counts" in given:
        shape = given["counts"]
        buffer, held = _counts_in(device, {"shape": shape, "numbers": [0] * math.prod(shape)})
        kernel.encodeToCommandBuffer_sourceTexture_histogram_histogramOffset_(
            command_buffer, sources[0].texture(), buffer, 0
        )
        finish(command_buffer)
        return answered({"counts": written(held.astype(np.float32).reshape(shape))}, [kernel])
    result = empty(device, *given["destination"])
    if given["kernel"]["class"] == "MPSImageGuidedFilter":
        textures = [each.texture() for each in sources] + [None] * (3 - len(sources))
        words = "sourceTexture_guidanceTexture_weightsTexture_destinationCoefficientsTexture_"
        getattr(kernel, f"encodeRegressionToCommandBuffer_{words}")(command_buffer, *textures, result.texture())
    else:
        tables = [_counts_in(device, each)[0] for each in given.get("histograms", ())]
        if tables:
            taken = [part for each in tables for part in (each, 0)]
            getattr(kernel, _TRANSFORMS[len(tables)])(command_buffer, sources[0].texture(), *taken)
        words = "sourceImage_" if len(sources) == 1 else "primaryImage_secondaryImage_"
        getattr(kernel, f"encodeToCommandBuffer_{words}destinationImage_")(command_buffer, *sources, result)
    finish(command_buffer, [result])
    return answered({"result": written(pixels(result))}, [kernel])


KINDS = {
    "kernel": _kernel, "graph": _graph, "training": _training, "object": _object, "matrices": _matrices,
    "random": _random, "spacing": _spacing, "filter": _filter,
}  # fmt: skip


def answer(given, device):
    """What the machine answers to a case."""
    if given["kind"] not in KINDS:
        return {"unsupported": f"the kind {given['kind']}"}
    try:
        return KINDS[given["kind"]](Maker(device), given)
    except Unsupported as error:
        return {"unsupported": str(error)}
    except (ValueError, TypeError, AttributeError, objc.error) as error:
        return {"refused": type(error).__name__}


def changed(given):
    """A case whose first source's first number is larger by 1."""
    first, *others = given["sources"]
    numbers = [first["numbers"][0] + 1, *first["numbers"][1:]]
    return {**given, "sources": [{**first, "numbers": numbers}, *others]}


# --- processes --------------------------------------------------------------------------------------------------------

START = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
"""What started this program, up to its name: the interpreter, and the facade where there is one."""
_NO_ANSWER = {"unsupported": "no answer"}


def child(arguments):
    """Answer the cases of a file into another one, a line each; faults are planted."""
    file, target, index, fault = arguments
    error = os.open(f"{target}.stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(error, 2)
    if fault == "abort":
        os.abort()
    if fault == "hang":
        time.sleep(3600)
    if fault == "silence":
        return
    register()
    device = Metal.MTLCopyAllDevices()[int(index)]
    with open(target, "w", encoding="utf-8") as out:
        for given in json.loads(Path(file).read_text(encoding="utf-8")):
            found = answer(changed(given) if fault == "another number" else given, device)
            out.write(json.dumps(found, allow_nan=False) + "\n")
            out.flush()


def ask(some, folder, index, fault="none", limit=60.0):
    """The answers to cases, of which the last one may be how its process ended."""
    file, target = Path(folder, "cases.json"), Path(folder, "answers.json")
    target.unlink(missing_ok=True)
    file.write_text(json.dumps(some), encoding="utf-8")
    words = [*START, "--child", str(file), str(target), str(index), fault]
    try:
        status = subprocess.run(words, timeout=limit * len(some), check=False).returncode
    except subprocess.TimeoutExpired:
        status = None
    lines = target.read_text(encoding="utf-8").splitlines() if target.exists() else []
    answers = [json.loads(line) for line in lines if line.endswith("}")]
    if len(answers) < len(some):
        answers.append(_ended(status, limit, target))
    return answers


def _ended(status, limit, target):
    """How a process ended that has not answered."""
    if status is None:
        return {"timedOut": limit}
    if status >= 0:
        return _NO_ANSWER
    said = Path(f"{target}.stderr").read_text(encoding="utf-8", errors="replace").splitlines()
    return {"aborted": -status, "stderr": said[-1] if said else ""}


def planted(document, folder, index):
    """The planted faults, each of which was seen; an error if one was not, or a control is wrong."""
    cases, found = {each["name"]: each for each in document["cases"]}, {}
    for control in document["controls"]:
        name, values = control["case"], control["values"]
        if not _agrees(ask([cases[name]], folder, index)[0], values):
            raise SystemExit(f"error: {name} has not the answer that is known")
        if _agrees(ask([cases[name]], folder, index, "another number")[0], values):
            raise SystemExit(f"error: {name} with another number has the same answer")
        found[f"another number: {name}"] = "seen"
    for fault, sign in (("abort", "aborted"), ("hang", "timedOut"), ("silence", "unsupported")):
        given = cases[document["controls"][0]["case"]]
        if sign not in ask([given], folder, index, fault, 1.0 if fault == "hang" else 60.0)[0]:
            raise SystemExit(f"error: the planted fault {fault!r} is not seen")
        found[fault] = "seen"
    return found


def _agrees(found, known):
    """Whether an answer begins with the numbers that are known."""
    values = found.get("values", {})
    return all(
        values.get(name, {"numbers": []})["numbers"][: len(each["numbers"])] == each["numbers"]
        for name, each in known.items()
    )


def recorded(document, folder, index, together):
    """The answers to all cases, by name."""
    listed, found = document["cases"], {}
    while len(found) < len(listed):
        some = listed[len(found) :][:together]
        for given, each in zip(some, ask(some, folder, index), strict=False):
            found[given["name"]] = each
        print(f"{len(found)} of {len(listed)}", file=sys.stderr)
    return found


def main():
    """Record every GPU of the machine."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    source = Path(__file__).resolve().parent.parent / "src" / "openmps" / "conformance" / "cases.json"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", default=source, type=Path, help="the list of cases")
    parser.add_argument("--out", default="goldens", type=Path, help="where folders of machines are written")
    parser.add_argument("--together", default=1, type=int, help="cases of one process")
    options = parser.parse_args()
    document = json.loads(options.list.read_text(encoding="utf-8"))
    system = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else "no Mac"
    for index, device in enumerate(Metal.MTLCopyAllDevices()):
        with tempfile.TemporaryDirectory() as folder:
            faults = planted(document, folder, index)
            answers = recorded(document, folder, index, options.together)
        machine = {
            "framework": "Apple" if platform.mac_ver()[0] else "openmps", "gpu": device.name(), "system": system,
            "build": platform.platform(), "unsupported": sum("unsupported" in each for each in answers.values()),
        }  # fmt: skip
        target = options.out / f"{system}-{device.name()}".replace(" ", "_").replace("/", "_")
        target.mkdir(parents=True, exist_ok=True)
        written_file = {
            "format": 1, "list": document["digest"], "planted": faults, "machine": machine, "answers": answers,
        }  # fmt: skip
        text = json.dumps(written_file, allow_nan=False)
        Path(target, "recording.part").write_text(text + "\n", encoding="utf-8")
        os.replace(Path(target, "recording.part"), Path(target, "recording.json"))
        print(f"{len(answers)} answers in {target / 'recording.json'}, {machine['unsupported']} not understood")


if __name__ == "__main__":
    main()
