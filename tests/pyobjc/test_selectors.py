"""Selectors under their PyObjC names: calls, keywords, properties, what is refused, and what every object answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps
from in_one_test import in_one_test
from openmps.pyobjc.selectors import python_name

TABLES = Path(openmps.__file__).parent / "pyobjc"
DECLARED = [line for name in ("framework.txt", "metal.txt") for line in (TABLES / name).read_text().split("\n")]
WITHOUT = {
    "initWithCoder_", "initWithCoder_device_", "encodeWithCoder_", "regions",
}  # fmt: skip
"""Selectors of the headers that openmps has nothing for; each says why."""


@cache
def _declared() -> list[tuple[str, str, str]]:
    """Each class that openmps has, with its selectors and properties, and what the table says of them."""
    found, owner = [], ""
    for line in DECLARED:
        first, _, said = line.strip().partition(" ")
        if line[:1] != " ":
            kind = said.partition(" ")[2]
            owner = first if first in openmps.__all__ and len(kind) > 1 and not kind.startswith("protocol") else ""
        elif owner:
            found.append((owner, first, said))
            if first[0] == "@" and "readonly" not in said and said != "unavailable":
                found.append((owner, f"-set{first[1].upper()}{first[2:]}:", said))
    return found


@in_one_test
@pytest.mark.parametrize("owner", sorted({owner for owner, _, _ in _declared()}))
def test_every_selector_of_a_class_is_there(owner: str, MPS: Any) -> None:
    kind = getattr(MPS, owner)
    for each, first, said in _declared():
        if each == owner:
            name = python_name(first[1:])
            if name in WITHOUT and said != "unavailable":
                with pytest.raises(AttributeError, match=f"'{name}': .+"):
                    getattr(kind, name)
                continue
            found = getattr(kind, name)
            assert (found.selector.decode(), found.isClassMethod) == (first[1:], first[0] == "+"), name
            if said == "unavailable":
                with pytest.raises(TypeError, match=f"^'{first[1:]}' is NS_UNAVAILABLE$"):
                    found()


def test_there_are_many_selectors() -> None:
    assert len(_declared()) > 1550
    assert sum(said == "unavailable" for _, _, said in _declared()) > 120


OBJECTS = {
    "MTLDevice", "MTLCommandQueue", "MTLCommandBuffer", "MTLResource", "MTLBuffer", "MTLHeap", "MTLTexture",
    "MTLBlitCommandEncoder",
}  # fmt: skip
"""Classes of Metal whose objects are known by their protocol."""
OURS = {"MPSImageBatch", "MPSStateBatch", "MPSKeyedArchiver"}
"""Classes for which Objective-C has an NSArray, or NSKeyedArchiver."""


def test_every_public_class_of_the_framework_can_be_used(MPS: Any) -> None:
    """Exceptions are named above: nothing else that openmps has may be missing, whoever adds it."""
    import objc

    there = set(dir(MPS))
    public = {name for name in openmps.__all__ if isinstance(getattr(openmps, name), type)}
    wanted = {
        name
        for name in public
        if name[:3] in ("MPS", "MTL") and not name.endswith(("Error", "Warning")) and name not in OBJECTS | OURS
    }
    protocols = {name for name in wanted if getattr(getattr(openmps, name), "_is_protocol", False)}
    assert wanted - protocols - there == set()
    assert len(wanted) > 400
    assert {objc.protocolNamed(name).__name__ for name in OBJECTS} == OBJECTS


def _pooling(MPS: Any, device: Any) -> Any:
    return MPS.MPSCNNPoolingMax(device=device, kernelWidth=2, kernelHeight=3, strideInPixelsX=4, strideInPixelsY=5)


def test_properties_are_called_and_set(MPS: Any, device: Any) -> None:
    kernel = _pooling(MPS, device)
    assert (kernel.kernelWidth(), kernel.kernelHeight(), kernel.strideInPixelsX()) == (2, 3, 4)
    assert kernel.setLabel_("pool") is None
    assert kernel.label() == "pool"
    kernel.setEdgeMode_(MPS.MPSImageEdgeModeClamp)
    assert type(kernel.edgeMode()) is int
    assert kernel.edgeMode() == MPS.MPSImageEdgeModeClamp == 1
    kernel.setOffset_((1, -2, 0))
    assert kernel.offset() == MPS.MPSOffset(x=1, y=-2, z=0)
    assert kernel.clipRect() == MPS.MPSRectNoClip == ((0, 0, 0), (2**64 - 1,) * 3)
    assert kernel.isBackwards() is False
    assert kernel.isKindOfClass_(MPS.MPSCNNKernel)


def test_indexed_accessors(MPS: Any, device: Any) -> None:
    image = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=4, height=4, featureChannels=4
    )
    kernel = MPS.MPSNNReshape(device=device)
    assert kernel.destinationFeatureChannelOffset() == 0
    state = MPS.MPSState(device=device, bufferSize=64)
    assert (state.bufferSizeAtIndex_(0), state.resourceCount()) == (64, 1)
    assert state.resourceAtIndex_allocateMemory_(0, True).length() == 64
    info = MPS.MPSState(device=device, textureDescriptor=image).textureInfoAtIndex_(0)
    assert (info.width, info.height, type(info).__name__) == (4, 4, "MPSStateTextureInfo")


@in_one_test
@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda MPS, it: it.setOffset_(), TypeError, "^Need 1 arguments, got 0$"),
        (lambda MPS, it: it.setOffset_((0, 0, 0), 1), TypeError, "^Need 1 arguments, got 2$"),
        (lambda MPS, it: it.kernelWidth(1), TypeError, "^Need 0 arguments, got 1$"),
        (lambda MPS, it: it.setOffset_(offset=(0, 0, 0)), TypeError, "keyword arguments"),
        (lambda MPS, it: it.setOffset_((0, 0)), ValueError, "3 members, got tuple of 2"),
        (lambda MPS, it: it.setOffset_(7), ValueError, "struct 'MPSOffset', got 'int'"),
        (lambda MPS, it: it.setEdgeMode_("clamp"), ValueError, "'MPSImageEdgeMode', got 'str'"),
        (lambda MPS, it: it.setEdgeMode_(77), ValueError, "77"),
        (lambda MPS, it: it.setDestinationFeatureChannelOffset_(2**64), ValueError, "wrong magnitude"),
        (lambda MPS, it: it.kernel_width, AttributeError, "'MPSCNNPoolingMax' object has no attribute 'kernel_width'$"),
        (lambda MPS, it: it.defaultAllocator(), AttributeError, "defaultAllocator"),
        (lambda MPS, it: setattr(it, "own", 1), AttributeError, "own"),
        (lambda MPS, it: MPS.MPSImage.alloc().width(), "objc.error", "MPSImage: .*before its init"),
        (lambda MPS, it: MPS.MPSImage.width(it), TypeError, "Expecting instance of MPSImage as self"),
        (lambda MPS, it: MPS.MPSStateResourceList.resourceListWithBufferSizes_(4), TypeError, "variadic"),
        (lambda MPS, it: MPS.MPSImage.colour, AttributeError, "type object 'MPSImage' has no attribute 'colour'$"),
    ],
)
def test_wrong_use_is_refused_as_pyobjc_does(
    call: Callable[[Any, Any], Any], kind: Any, said: str, MPS: Any, device: Any
) -> None:
    import objc

    with pytest.raises(objc.error if kind == "objc.error" else kind, match=said):
        call(MPS, _pooling(MPS, device))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda MPS, d: MPS.MPSCNNNeuronReLU(a=0.5, device=d), "does not support keyword arguments 'a', 'device'"),
        (lambda MPS, d: MPS.MPSCNNNeuronReLU(d, 0.5), "does not accept positional arguments"),
        (lambda MPS, d: MPS.MPSCNNNeuronReLU(), "device must be given"),
        (lambda MPS, d: MPS.MPSCNNNeuronReLU(d, device=d, a=0.5), "does not accept positional arguments"),
        (lambda MPS, d: MPS.MPSImage(), "requires keyword arguments"),
    ],
)
def test_keywords_stand_in_the_selectors_order(
    call: Callable[[Any, Any], Any], said: str, MPS: Any, device: Any
) -> None:
    assert MPS.MPSCNNNeuronReLU(device=device, a=0.5).a() == 0.5
    with pytest.raises(TypeError, match=said):
        call(MPS, device)


def test_factories_make_objects_of_the_class_that_is_asked(MPS: Any, device: Any) -> None:
    source = MPS.MPSNNImageNode.nodeWithHandle_(None)
    other = MPS.MPSNNImageNode(handle=None)
    node = MPS.MPSNNAdditionNode.nodeWithLeftSource_rightSource_(source, other)
    assert type(node) is MPS.MPSNNAdditionNode
    assert "MPSNNAdditionNode" in node.description()
    assert MPS.MPSCNNPoolingMaxNode(source=source, filterSize=2, stride=3).strideInPixelsX() == 3
    descriptor = MPS.MPSNNNeuronDescriptor.cnnNeuronDescriptorWithType_a_(MPS.MPSCNNNeuronTypeELU, 0.5)
    assert (descriptor.neuronType(), descriptor.a()) == (MPS.MPSCNNNeuronTypeELU, 0.5)
    copy = descriptor.copy()
    assert type(copy) is type(descriptor)
    assert copy is not descriptor
    assert copy.a() == 0.5
    kernel = _pooling(MPS, device).copyWithZone_device_(None, device)
    assert kernel.kernelWidth() == 2


def test_plain_init(MPS: Any, device: Any) -> None:
    descriptor = MPS.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(4096)
    assert device.newHeapWithDescriptor_(descriptor).size() >= 4096
    assert MPS.MPSStateResourceList.new().class__() is MPS.MPSStateResourceList
    assert type(MPS.NSObject()) is MPS.NSObject
    resources = MPS.MPSStateResourceList.resourceList()
    resources.appendBuffer_(16)
    assert MPS.MPSState(device=device, resourceList=resources).bufferSizeAtIndex_(0) == 16


def test_the_same_object_comes_back_while_it_is_alive(MPS: Any, device: Any) -> None:
    import objc

    kernel = _pooling(MPS, device)
    assert kernel.device() is device
    assert kernel.padding() is kernel.padding()
    assert kernel.padding() == MPS.MPSNNDefaultPadding.paddingWithMethod_(kernel.padding().paddingMethod())
    assert hash(kernel) == hash(kernel)
    assert len({kernel, _pooling(MPS, device)}) == 2
    assert kernel != device
    assert not kernel.isEqual_(None)
    assert objc.objc_object(c_void_p=kernel.__c_void_p__()) is kernel
    with pytest.raises(ValueError, match="no object at the address 1"):
        objc.objc_object(c_void_p=1)


def test_what_every_object_answers(MPS: Any, device: Any) -> None:
    import objc
    from Foundation import NSObject

    kernel = _pooling(MPS, device)
    assert kernel.class__() is MPS.MPSCNNPoolingMax is type(kernel)
    assert kernel.superclass() is MPS.MPSCNNPooling
    assert kernel.respondsToSelector_(b"kernelWidth")
    assert kernel.respondsToSelector_("setOffset:")
    assert not kernel.respondsToSelector_(b"defaultAllocator")
    assert not kernel.respondsToSelector_(b"initWithCoder:")
    assert MPS.MPSCNNPooling.instancesRespondToSelector_(b"kernelWidth")
    assert kernel.conformsToProtocol_(objc.protocolNamed("NSCopying"))
    assert device.conformsToProtocol_(objc.protocolNamed("MTLDevice"))
    assert not device.conformsToProtocol_(objc.protocolNamed("MTLBuffer"))
    assert kernel.performSelector_(b"kernelWidth") == 2
    assert kernel.retain() is kernel
    assert "MPSCNNPoolingMax" in kernel.description()
    assert repr(kernel) == kernel.description()
    assert isinstance(kernel, NSObject)
    with pytest.raises(ValueError, match="copyWithZone"):
        NSObject.alloc().init().copy()


def test_unbound_selectors_are_objects(MPS: Any) -> None:
    import objc

    found = MPS.MPSImage.width
    assert isinstance(found, objc.selector)
    assert (found.selector, found.signature, found.isClassMethod) == (b"width", b"Q@:", False)
    assert MPS.MPSImage.defaultAllocator.isClassMethod
    assert MPS.MPSImage.defaultAllocator().respondsToSelector_(b"imageForCommandBuffer:imageDescriptor:kernel:")


def test_states_come_back_through_pointers_only_with_metadata(MPS: Any, device: Any) -> None:
    import objc

    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=2, height=2, featureChannels=1
    )
    image = MPS.MPSImage(device=device, imageDescriptor=descriptor)
    image.writeBytes_dataLayout_imageIndex_(np.float32([1, 2, 3, 4]), 0, 0)
    kernel = MPS.MPSCNNNeuronReLU(device=device, a=0.0)
    command_buffer = device.newCommandQueue().commandBuffer()
    encode = kernel.encodeToCommandBuffer_sourceImage_destinationState_destinationStateIsTemporary_
    assert isinstance(encode(command_buffer, image, None, True), MPS.MPSImage)
    with pytest.raises(ValueError, match="'pointer', got 'list'"):
        encode(command_buffer, image, [], True)
    objc.registerMetaDataForSelector(
        b"MPSCNNKernel",
        b"encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:",
        {"arguments": {4: {"type_modifier": b"o"}, 5: {"type": b"Z"}}},
    )
    result, state = encode(command_buffer, image, None, False)
    assert isinstance(result, MPS.MPSImage)
    assert isinstance(state, MPS.MPSNNGradientState)
    assert not state.isTemporary()
