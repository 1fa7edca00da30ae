"""Classes that Python writes: which functions are selectors, what is refused, and how data sources are asked."""

from __future__ import annotations

from collections.abc import Callable
from mmap import PAGESIZE, mmap
from typing import Any

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps.pyobjc.errors import RefusedByPyObjCWarning

WEIGHTS = np.float32([[1, 2], [3, 4]]).reshape(2, 1, 1, 2)
ADDRESS = {"retval": {"type": b"^v"}}
SEQUENCE = {"retval": {"type": b"^f", "c_array_of_variable_length": True}}
_made = iter(range(10**6))


def make(contents: dict[str, Any], base: Any = None, **options: Any) -> Any:
    """A class of a name that no other has."""
    from Foundation import NSObject

    base = base or NSObject
    return type(base)(f"Own{next(_made)}", (base,), {"__module__": __name__, **contents}, **options)


def source(MPS: Any, weights: Any, /, **others: Any) -> Any:
    """A data source whose weights() returns this."""
    import objc

    descriptor = MPS.MPSCNNConvolutionDescriptor(
        kernelWidth=1, kernelHeight=1, inputFeatureChannels=2, outputFeatureChannels=2
    )
    answers = {
        "dataType": lambda self: MPS.MPSDataTypeFloat32,
        "descriptor": lambda self: descriptor,
        "weights": lambda self: weights,
        "biasTerms": lambda self: objc.NULL,
        "load": lambda self: True,
        "purge": lambda self: None,
        "label": lambda self: "own",
    }
    return make({**answers, **others}).alloc().init()


def answer(MPS: Any, device: Any, kernel: Any) -> list[float]:
    """What a convolution makes of the channels 1 and 10."""
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=1, height=1, featureChannels=2
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(np.float32([1, 10]), 0, 0)
    kernel.setDestinationImageAllocator_(MPS.MPSImage.defaultAllocator())
    command_buffer = device.newCommandQueue().commandBuffer()
    result = kernel.encodeToCommandBuffer_sourceImage_(command_buffer, image)
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    found = np.zeros(2, np.float32)
    result.readBytes_dataLayout_imageIndex_(found, 0, 0)
    return found.tolist()


class Mixin:
    def mixed_in(self, value: int) -> int:
        return 2 * value


# --- class bodies -----------------------------------------------------------------------------------------------------


def test_which_functions_are_selectors() -> None:
    import objc

    def body(self: Any, *arguments: Any) -> Any:
        return arguments

    kind = make({
        "plain": lambda self: 1,
        "with_arguments_": lambda self, a, b: (a, b),
        "add_one": lambda self, value: value + 1,
        "stays": objc.python_method(lambda self, value: value),
        "__len__": lambda self: 3,
        "made": classmethod(lambda cls: cls),
        "fixed": staticmethod(lambda: 5),
        "many_": body,
        "value": 7,
        "computed": property(lambda self: 8),
    })  # fmt: skip
    thing = kind.alloc().init()
    assert isinstance(kind.plain, objc.selector)
    assert kind.with_arguments_.selector == b"with:arguments:"
    assert not isinstance(kind.add_one, objc.selector)
    assert (thing.plain(), thing.with_arguments_(1, 2), thing.add_one(1), thing.stays(4)) == (1, (1, 2), 2, 4)
    assert (len(thing), kind.made(), thing.fixed(), thing.many_(1), thing.value, thing.computed) == (
        3,
        kind,
        5,
        (1,),
        7,
        8,
    )
    assert thing.respondsToSelector_(b"with:arguments:")
    thing.attribute = [1]
    assert thing.attribute == [1]
    mixed = type(kind)(f"Own{next(_made)}", (kind, Mixin), {}).alloc().init()
    assert (mixed.plain(), mixed.mixed_in(2)) == (1, 4)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        ({"compute": lambda self, x: x}, "'compute' expects 0 arguments, .* has 1 positional"),
        ({"compute_": lambda self: 1}, "'compute:' expects 1 arguments, .* has 0 positional"),
        ({"compute_": lambda self, x, y, z=1: 1}, "has between 2 and 3 positional"),
        ({"compute_": lambda self, x, *, key: 1}, "1 keyword-only arguments without a default"),
    ],
)
def test_functions_take_an_argument_a_colon(contents: dict[str, Any], said: str) -> None:
    import objc

    with pytest.raises(objc.BadPrototypeError, match=said):
        make(contents)


def test_a_name_is_taken_once() -> None:
    import objc
    from Foundation import NSObject

    type(NSObject)("OwnOnlyOne", (NSObject,), {})
    with pytest.raises(objc.error, match="OwnOnlyOne is overriding existing Objective-C class"):
        type(NSObject)("OwnOnlyOne", (NSObject,), {})
    assert objc.lookUpClass("OwnOnlyOne").__name__ == "OwnOnlyOne"
    with pytest.raises(objc.nosuchclass_error):
        objc.lookUpClass("OwnNoSuchClass")


def test_initializers_call_that_of_the_base(MPS: Any, device: Any) -> None:
    import objc

    class OwnBase(MPS.NSObject):  # type: ignore[name-defined, misc]
        def initWithValue_(self, value: int) -> Any:
            self = objc.super(OwnBase, self).init()
            self.value = value
            return self

    class OwnDerived(OwnBase):
        def initWithValue_(self, value: int) -> Any:
            self = objc.super(OwnDerived, self).initWithValue_(value + 1)
            return self

    assert OwnDerived.alloc().initWithValue_(1).value == 2
    assert OwnDerived(value=4).value == 5

    class OwnReLU(MPS.MPSCNNNeuronReLU):  # type: ignore[name-defined, misc]
        def initWithDevice_(self, device: Any) -> Any:
            return objc.super(OwnReLU, self).initWithDevice_a_(device, 0.25)

    kernel = OwnReLU.alloc().initWithDevice_(device)
    assert kernel.a() == 0.25
    assert isinstance(kernel, MPS.MPSCNNKernel)
    kernel.note = "own"

    class Handle(MPS.NSObject):  # type: ignore[name-defined, misc]
        """Has the name of something else of openmps."""

        def label(self) -> str:
            return "mine"

    node = MPS.MPSNNImageNode(handle=Handle())
    assert node.handle().label() == "mine"
    with pytest.warns(objc.ObjCSuperWarning, match="super is not objc.super"):

        class OwnPlainSuper(MPS.NSObject):  # type: ignore[name-defined, misc]
            def init(self) -> Any:
                return super().init()

    assert OwnPlainSuper.alloc().init() is not None


def test_what_openmps_could_not_call_is_refused(MPS: Any) -> None:
    import objc

    with pytest.raises(objc.error, match="MPSCNNKernel.offset: openmps cannot call a method of Python"):
        make({"offset": lambda self: (0, 0, 0)}, MPS.MPSCNNNeuronReLU)


# --- protocols --------------------------------------------------------------------------------------------------------


def test_protocols_tell_what_is_missing(MPS: Any) -> None:
    import objc

    protocol = objc.protocolNamed("MPSCNNConvolutionDataSource")
    assert protocol is objc.protocolNamed("MPSCNNConvolutionDataSource")
    required = {each["selector"] for each in protocol.instanceMethods() if each["required"]}
    assert required == {b"dataType", b"descriptor", b"weights", b"biasTerms", b"load", b"purge", b"label"}
    assert protocol.descriptionForInstanceMethod_(b"load") == (b"load", b"Z@:")
    assert protocol.descriptionForInstanceMethod_(b"nothing") is None
    with pytest.raises(TypeError, match="does not fully implemented protocol 'MPSHandle': no .* method 'label'"):
        make({}, protocols=[objc.protocolNamed("MPSHandle")])
    with pytest.raises(TypeError, match="does not fully implemented"):
        make({"__pyobjc_protocols__": [objc.protocolNamed("MPSHandle")]})
    kind = make({"label": lambda self: "x"}, protocols=[objc.protocolNamed("MPSHandle")])
    assert kind.alloc().init().conformsToProtocol_(objc.protocolNamed("MPSHandle"))
    with pytest.raises(TypeError, match="isn't an Objective-C protocol, but type str"):
        make({}, protocols=["MPSHandle"])
    with pytest.raises(objc.ProtocolError):
        objc.protocolNamed("MPSNoSuchProtocol")
    assert issubclass(objc.ProtocolError, objc.error)


# --- data sources -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "weights"),
    [
        (ADDRESS, WEIGHTS.ctypes.data),
        (SEQUENCE, [1, 2, 3, 4]),
        (SEQUENCE, WEIGHTS.ravel()),
        (SEQUENCE, (float(each) for each in range(1, 5))),
        (SEQUENCE, [1, 2, 3, 4, 99]),
    ],
    ids=["address", "list", "array", "generator", "longer"],
)
def test_weights_under_metadata_that_works_on_a_mac(row: dict[str, Any], weights: Any, MPS: Any, device: Any) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", row)
    given = list(weights) if not isinstance(weights, (int, list, np.ndarray)) else weights
    made = source(MPS, given)
    kernel = MPS.MPSCNNConvolution(device=device, weights=made)
    assert answer(MPS, device, kernel) == [21, 43]
    assert kernel.dataSource() is made
    assert kernel.label() == "own"


@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS.tobytes(), [1, 2, 3, 4]], ids=["array", "bytes", "list"])
def test_weights_that_pyobjc_refuses_are_taken_with_a_warning(weights: Any, MPS: Any, device: Any) -> None:
    with pytest.warns(RefusedByPyObjCWarning, match="0x76.*registerMetaDataForSelector"):
        kernel = MPS.MPSCNNConvolution(device=device, weights=source(MPS, weights))
    assert answer(MPS, device, kernel) == [21, 43]


@in_one_test
@pytest.mark.parametrize(
    ("row", "others", "kind", "said"),
    [
        (ADDRESS, {"weights": lambda self: [1.0]}, ValueError, "returned list, .* address"),
        (ADDRESS, {"weights": lambda self: -1}, ValueError, r"weights\(\) returned -0x1, where no 16 bytes"),
        (ADDRESS, {"weights": lambda self: 1}, ValueError, "must be kept, in an attribute"),
        (ADDRESS, {"weights": lambda self: 2**70}, ValueError, "where no 16 bytes can be read"),
        (ADDRESS, {"biasTerms": lambda self: None}, TypeError, r"biasTerms\(\) .*Sequence required, or objc.NULL"),
        (ADDRESS, {"load": lambda self: None}, ValueError, r"load\(\) must return True"),
        (ADDRESS, {"purge": lambda self: 1}, ValueError, r"purge: returned 1, and its type is void"),
        (SEQUENCE, {"weights": lambda self: [1, 2, 3]}, ValueError, "returned 3 elements, and the framework reads 4"),
        (SEQUENCE, {"weights": lambda self: ["a"] * 4}, ValueError, "depythonifying"),
        (SEQUENCE, {"weights": lambda self: 7}, TypeError, "Sequence required"),
        (ADDRESS, {"dataType": lambda self: 5}, ValueError, "5"),
        (ADDRESS, {"descriptor": lambda self: None}, TypeError, "must return an MPSCNNConvolutionDescriptor"),
    ],
)
def test_wrong_answers_of_data_sources(
    row: dict[str, Any], others: dict[str, Any], kind: type[Exception], said: str, MPS: Any, device: Any
) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", row)
    with pytest.raises(kind, match=said):
        MPS.MPSCNNConvolution(device=device, weights=source(MPS, WEIGHTS.ctypes.data, **others))


def test_an_address_of_memory_that_cannot_be_read(MPS: Any, device: Any) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", ADDRESS)
    memory = np.frombuffer(mmap(-1, PAGESIZE, prot=0), np.uint8)
    with pytest.raises(ValueError, match=r"weights\(\) returned 0x.* must be kept"):
        MPS.MPSCNNConvolution(device=device, weights=source(MPS, memory.ctypes.data))


@in_one_test
@pytest.mark.parametrize(
    ("weights", "data_type", "said"),
    [
        (WEIGHTS.astype(np.float64), "Float32", r"weights\(\) returned a buffer of float64, .* says float32"),
        (WEIGHTS.astype(np.int32), "Float32", "a buffer of int32"),
        (WEIGHTS.astype(">f4"), "Float32", "a buffer of >f4"),
        (WEIGHTS, "Float16", "a buffer of float32, .* says float16"),
        (bytes(17), "Float32", "returned 17 bytes, which are no whole elements of float32"),
        ([[1], [2, 3, 4]], "Float32", r"weights\(\) returned a list that is no array of float32"),
        (["a"] * 4, "Float32", "no array of float32"),
        ([300] * 4, "UInt8", "no array of uint8: .*300"),
    ],
)
@pytest.mark.filterwarnings("ignore::openmps.pyobjc.errors.RefusedByPyObjCWarning")
def test_weights_of_another_element_type(weights: Any, data_type: str, said: str, MPS: Any, device: Any) -> None:
    kind = getattr(MPS, f"MPSDataType{data_type}")
    with pytest.raises(ValueError, match=said):
        MPS.MPSCNNConvolution(device=device, weights=source(MPS, weights, dataType=lambda self: kind))


def test_an_attribute_may_have_the_name_of_its_getter(MPS: Any, device: Any) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", ADDRESS)
    made = source(
        MPS,
        0,
        weights=lambda self: self.weights.ctypes.data,
        **{name: lambda self, name=name: getattr(self, name) for name in ("label", "dataType", "descriptor")},
    )
    made.weights, made.label, made.dataType = WEIGHTS, "mine", MPS.MPSDataTypeFloat32
    made.descriptor = MPS.MPSCNNConvolutionDescriptor(
        kernelWidth=1, kernelHeight=1, inputFeatureChannels=2, outputFeatureChannels=2
    )
    kernel = MPS.MPSCNNConvolution(device=device, weights=made)
    assert answer(MPS, device, kernel) == [21, 43]
    assert kernel.label() == "mine"


def test_an_exception_of_a_callback_reaches_the_caller(MPS: Any, device: Any) -> None:
    fault = RuntimeError("mine")

    def load(self: Any) -> bool:
        raise fault

    with pytest.raises(RuntimeError) as found:
        MPS.MPSCNNConvolution(device=device, weights=source(MPS, 0, load=load))
    assert found.value is fault


@pytest.mark.parametrize("is_table", [True, False])
def test_weights_of_eight_bits(is_table: bool, MPS: Any, device: Any) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", ADDRESS)
    objc.registerMetaDataForSelector(b"NSObject", b"lookupTableForUInt8Kernel", SEQUENCE)
    octets = np.uint8([0, 255, 255, 0])
    ranges = {"rangesForUInt8Kernel": lambda self: [(0.0, 1.0), objc.simd.vector_float2(0, 2)]}
    table = {"lookupTableForUInt8Kernel": lambda self: [each / 255 * 2 for each in range(256)]}
    kind = MPS.MPSCNNWeightsQuantizationTypeLookupTable if is_table else MPS.MPSCNNWeightsQuantizationTypeLinear
    made = source(
        MPS,
        octets.ctypes.data,
        dataType=lambda self: MPS.MPSDataTypeUInt8,
        weightsQuantizationType=lambda self: kind,
        **(table if is_table else ranges),
    )
    import objc.simd

    found = answer(MPS, device, MPS.MPSCNNConvolution(device=device, weights=made))
    assert found == pytest.approx([20, 2] if is_table else [10, 2])


def test_batch_normalization_reads_its_data_source(MPS: Any, device: Any) -> None:
    made = make({
        "numberOfFeatureChannels": lambda self: 2,
        "gamma": lambda self: [2, 3],
        "beta": lambda self: np.float32([0.5, 0.25]),
        "mean": lambda self: (1, 8),
        "variance": lambda self: [1, 4],
        "epsilon": lambda self: 0.0,
        "load": lambda self: True,
        "purge": lambda self: None,
        "label": lambda self: None,
    }).alloc().init()  # fmt: skip
    kernel = MPS.MPSCNNBatchNormalization(device=device, dataSource=made)
    assert answer(MPS, device, kernel) == [0.5, 3.25]


def test_copies_of_a_kernel_copy_the_data_source(MPS: Any, device: Any) -> None:
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", ADDRESS)
    asked: list[Any] = []

    def copy(self: Any, zone: Any, device: Any) -> Any:
        asked.append((zone, device))
        return self

    made = source(MPS, WEIGHTS.ctypes.data, copyWithZone_device_=copy)
    twin = MPS.MPSCNNConvolution(device=device, weights=made).copyWithZone_device_(None, device)
    assert asked == [(None, device)]
    assert twin.dataSource() is made


# --- other protocols --------------------------------------------------------------------------------------------------


def test_a_padding_policy_of_ones_own(MPS: Any, device: Any) -> None:
    seen: list[Any] = []

    def describe(self: Any, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        seen.append((images[0].width(), states, kernel))
        suggested.setWidth_(1)
        kernel.setOffset_((1, 0, 0))
        return suggested

    policy = make({
        "paddingMethod": lambda self: MPS.MPSNNPaddingMethodCustom | MPS.MPSNNPaddingMethodSizeSame,
        "label": lambda self: "crop",
        "destinationImageDescriptorForSourceImages_sourceStates_forKernel_suggestedDescriptor_": describe,
    }).alloc().init()  # fmt: skip
    kernel = MPS.MPSCNNNeuronReLU(device=device, a=0.0)
    kernel.setPadding_(policy)
    assert kernel.padding() is policy
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=2, height=1, featureChannels=1
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    command_buffer = device.newCommandQueue().commandBuffer()
    assert kernel.encodeToCommandBuffer_sourceImage_(command_buffer, image).width() == 1
    assert seen == [(2, [], kernel)]


def test_an_allocator_of_ones_own(MPS: Any, device: Any) -> None:
    asked: list[Any] = []

    def image(self: Any, command_buffer: Any, descriptor: Any, kernel: Any) -> Any:
        asked.append((descriptor.width(), kernel))
        return MPS.MPSImage(device=command_buffer.device(), imageDescriptor=descriptor)

    allocator = make({"imageForCommandBuffer_imageDescriptor_kernel_": image}).alloc().init()
    kernel = MPS.MPSCNNNeuronReLU(device=device, a=0.0)
    kernel.setDestinationImageAllocator_(allocator)
    assert kernel.destinationImageAllocator() is allocator
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=2, height=1, featureChannels=1
    )
    source_image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    command_buffer = device.newCommandQueue().commandBuffer()
    assert type(kernel.encodeToCommandBuffer_sourceImage_(command_buffer, source_image)) is MPS.MPSImage
    assert asked == [(2, kernel)]


def test_callbacks_of_nodes(MPS: Any, device: Any) -> None:
    def transform(self: Any, image: Any, handle: Any) -> Any:
        return (2.0, 2.0, 0.0, 0.0)

    provider = make({"transformForSourceImage_handle_": transform}).alloc().init()
    node = MPS.MPSNNBilinearScaleNode(
        source=MPS.MPSNNImageNode(handle=None), transformProvider=provider, outputSize=(2, 2, 1)
    )
    graph = MPS.MPSNNGraph(device=device, resultImage=node.resultImage())
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=1, height=1, featureChannels=1
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(np.float32([3]), 0, 0)
    command_buffer = device.newCommandQueue().commandBuffer()
    result = graph.encodeToCommandBuffer_sourceImages_(command_buffer, [image])
    assert (result.width(), result.height()) == (2, 2)


def _updated(MPS: Any, device: Any, style: int, updates: dict[str, Callable[..., Any]]) -> Any:
    """A source whose layer was trained for one step, whatever the gradient."""
    import objc

    objc.registerMetaDataForSelector(b"NSObject", b"weights", ADDRESS)
    made = source(MPS, WEIGHTS.ctypes.data, **updates)
    node = MPS.MPSCNNConvolutionNode(source=MPS.MPSNNImageNode(handle=None), weights=made)
    node.setTrainingStyle_(style)
    kind = MPS.MPSCNNLossDescriptor.cnnLossDescriptorWithType_reductionType_(1, 1)
    loss = MPS.MPSCNNLossNode(source=node.resultImage(), lossDescriptor=kind)
    ends = loss.trainingGraphWithSourceGradient_nodeHandler_(loss.resultImage(), None)
    graph = MPS.MPSNNGraph(device=device, resultImage=ends[0].resultImage())
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=1, height=1, featureChannels=2
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(np.float32([1, 2]), 0, 0)
    data = MPS.NSData.dataWithBytes_length_(np.zeros(2, np.float32), 8)
    description = MPS.MPSCNNLossDataDescriptor.cnnLossDataDescriptorWithData_layout_size_(data, 0, (1, 1, 2))
    labels = MPS.MPSCNNLossLabels(device=device, labelsDescriptor=description)
    command_buffer = device.newCommandQueue().commandBuffer()
    graph.encodeBatchToCommandBuffer_sourceImages_sourceStates_(command_buffer, [[image]], [[labels]])
    command_buffer.commit()
    command_buffer.waitUntilCompleted()
    return made


@pytest.mark.parametrize("on_device", [True, False])
def test_updates_are_asked_where_the_style_says(on_device: bool, MPS: Any, device: Any) -> None:
    asked: list[Any] = []

    def update(self: Any, command_buffer: Any, gradient: Any, state: Any) -> Any:
        asked.append(("device", command_buffer.conformsToProtocol_(protocol), type(gradient), type(state)))

    def update_here(self: Any, gradient: Any, state: Any) -> bool:
        buffer = gradient.gradientForWeights()
        values = np.frombuffer(buffer.contents().as_buffer(buffer.length()), np.float32)
        asked.append(("host", values.shape, type(gradient), type(state)))
        return False

    import objc

    protocol = objc.protocolNamed("MTLCommandBuffer")
    updates = {
        "updateWithCommandBuffer_gradientState_sourceState_": update,
        "updateWithGradientState_sourceState_": update_here,
    }
    style = MPS.MPSNNTrainingStyleUpdateDeviceGPU if on_device else MPS.MPSNNTrainingStyleUpdateDeviceCPU
    made = _updated(MPS, device, style, updates)
    kinds = (MPS.MPSCNNConvolutionGradientState, MPS.MPSCNNConvolutionWeightsAndBiasesState)
    assert asked == [("device", True, *kinds) if on_device else ("host", (4,), *kinds)]
    assert made.label() == "own"


def test_weights_of_a_state_are_hidden_by_metadata_of_data_sources(MPS: Any, device: Any) -> None:
    import objc

    descriptor = MPS.MPSCNNConvolutionDescriptor(
        kernelWidth=1, kernelHeight=1, inputFeatureChannels=2, outputFeatureChannels=2
    )
    state = MPS.MPSCNNConvolutionWeightsAndBiasesState(device=device, cnnConvolutionDescriptor=descriptor)
    with pytest.warns(RefusedByPyObjCWarning, match="resourceAtIndex_allocateMemory_"):
        assert state.weights().length() == 16
    objc.registerMetaDataForSelector(b"MPSCNNConvolutionWeightsAndBiasesState", b"weights", {"retval": {"type": b"@"}})
    assert state.weights() is state.resourceAtIndex_allocateMemory_(0, False)
