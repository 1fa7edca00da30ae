"""Values across the bridge: numbers, enumerations, structs, collections, data, text and errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import openmps
from in_one_test import in_one_test
from openmps.pyobjc.tables import blocks, enumeration_codes

# --- modules and constants --------------------------------------------------------------------------------------------


def test_modules_show_the_names_of_those_below_them(MPS: Any) -> None:
    import AppKit
    import Cocoa
    import Foundation
    import Metal

    assert MPS.MTLSize is Metal.MTLSize
    assert MPS.NSObject is Metal.NSObject is Foundation.NSObject is Cocoa.NSObject is AppKit.NSObject
    assert {"MPSImage", "MTLSize", "NSObject", "MPSDataTypeFloat32", "MPSRectNoClip"} <= set(dir(MPS))
    assert not hasattr(Metal, "MPSImage")
    assert not hasattr(Foundation, "MTLSize")
    names: dict[str, Any] = {}
    exec("from MetalPerformanceShaders import *", names)
    assert names["MPSImage"] is MPS.MPSImage
    with pytest.raises(AttributeError, match="known by their protocol"):
        _ = MPS.MTLDevice
    with pytest.raises(AttributeError, match="no attribute 'MPSNothing'$"):
        _ = MPS.MPSNothing
    with pytest.raises(ImportError):
        import MetalPerformanceShadersGraph  # noqa: F401


def test_constants_are_plain_integers_under_their_full_names(MPS: Any) -> None:
    assert type(MPS.MPSCNNConvolutionFlagsNone) is int
    assert MPS.MPSDataType.__supertype__ is int
    assert MPS.MPSDataTypeFloat32 == 0x10000020
    assert MPS.MPSNNPaddingMethodSizeSame == 16
    assert MPS.MPSNNPaddingMethodAlignMask == MPS.MPSNNPaddingMethodAlign_reserved == 3
    assert MPS.MPSDataTypeIntBit == MPS.MPSDataTypeSignedBit
    metal = {
        "MTLResourceStorageModeShared": 0, "MTLResourceStorageModeManaged": 16, "MTLResourceStorageModePrivate": 32,
        "MTLCommandBufferStatusCompleted": 4, "MTLCommandBufferStatusError": 5, "MTLTextureUsageShaderRead": 1,
        "MTLTextureUsageShaderWrite": 2, "MTLPixelFormatRGBA8Unorm": 70, "MTLPixelFormatRGBA16Unorm": 110,
        "MTLPixelFormatRGBA16Float": 115, "MTLPixelFormatRGBA32Float": 125, "MTLTextureType2D": 2,
    }  # fmt: skip
    assert {name: getattr(MPS, name) for name in metal} == metal


@in_one_test
@pytest.mark.parametrize("name", sorted(name for name in enumeration_codes() if name in openmps.__all__))
def test_every_value_of_an_enumeration_has_a_constant(name: str, MPS: Any) -> None:
    values = {getattr(MPS, value[1:]) for value in blocks()[name].lines}
    assert {type(value) for value in values} == {int}
    assert values == {int(member) for member in getattr(openmps, name).__members__.values()}


# --- structs ----------------------------------------------------------------------------------------------------------


def test_structs_are_made_and_read_in_every_way(MPS: Any) -> None:
    size = MPS.MTLSize(3, depth=5)
    assert (size.width, size.height, size.depth) == (3, 0, 5)
    assert (list(size), len(size), size[2], size[:2]) == ([3, 0, 5], 3, 5, (3, 0))
    assert size._asdict() == {"width": 3, "height": 0, "depth": 5}
    assert size._replace(height=4) == (3, 4, 5)
    assert MPS.MTLSize._fields == MPS.MTLSize.__match_args__ == ("width", "height", "depth")
    assert MPS.MTLRegion.__typestr__ == b"{MTLRegion={MTLOrigin=QQQ}{MTLSize=QQQ}}"
    assert MPS.NSRange.__typestr__ == b"{_NSRange=QQ}"
    size.width = 7
    size[1] = 8
    assert size == MPS.MTLSizeMake(7, 8, 5)
    assert MPS.MTLSize(1, 2, 3) < (1, 2, 4)
    assert MPS.MTLRegionMake2D(1, 2, 3, 4) == ((1, 2, 0), (3, 4, 1))
    assert MPS.MTLRegionMake1D(1, 3) == ((1, 0, 0), (3, 1, 1))
    assert MPS.MTLRegionMake3D(1, 2, 3, 4, 5, 6) == ((1, 2, 3), (4, 5, 6))
    assert MPS.MTLOriginMake(1, 2, 3) == (1, 2, 3)
    assert MPS.NSMakeRange(2, 5) == (2, 5)
    assert type(MPS.MPSRegion().origin.x) is float


def test_copies_of_structs_share_what_they_hold(MPS: Any) -> None:
    region = MPS.MTLRegion()
    shallow, deep = copy.copy(region), copy.deepcopy(region)
    region.origin.x = 5
    assert (shallow.origin.x, deep.origin.x) == (5, 0)
    assert pickle.loads(pickle.dumps(region)) == region
    with pytest.raises(TypeError):
        hash(region)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda MPS: MPS.MTLSize(1, 2, 3, 4), "at most 3 arguments"),
        (lambda MPS: MPS.MTLSize(breadth=1), "unexpected keyword argument 'breadth'"),
        (lambda MPS: MPS.MTLSize(1, width=1), "multiple values for keyword argument 'width'"),
        (lambda MPS: MPS.MTLSizeMake(1, 2), "Need 3 arguments, got 2"),
    ],
)
def test_wrong_fields_of_structs(call: Callable[[Any], Any], said: str, MPS: Any) -> None:
    with pytest.raises(TypeError, match=said):
        call(MPS)


def test_a_struct_that_comes_back_is_a_copy(MPS: Any, device: Any) -> None:
    kernel = MPS.MPSCNNNeuronReLU(device=device, a=0.0)
    kernel.offset().x = 9
    assert kernel.offset() == (0, 0, 0)
    kernel.setClipRect_([[1, 2, 0], MPS.MTLSize(3, 4, 1)])
    assert kernel.clipRect() == ((1, 2, 0), (3, 4, 1))
    kernel.setClipRect_(((0, 0, 0), (-1, -1, -1)))
    assert kernel.clipRect().size.width == 2**64 - 1


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_numbers_are_taken_as_pyobjc_takes_them(MPS: Any, device: Any) -> None:
    kernel = MPS.MPSCNNNeuronReLU(device=device, a=np.float64(0.5))
    assert type(kernel.a()) is float
    assert kernel.a() == 0.5
    loss = MPS.MPSCNNLossDescriptor.cnnLossDescriptorWithType_reductionType_(0, 1)
    loss.setReduceAcrossBatch_([1])
    assert loss.reduceAcrossBatch() is True
    loss.setReduceAcrossBatch_("")
    assert loss.reduceAcrossBatch() is False
    loss.setNumberOfClasses_(np.int64(3))
    assert loss.numberOfClasses() == 3
    for value in ("1", b"1", np.array([1.0, 2.0]), 10**400):
        with pytest.raises(ValueError, match="depythonifying 'float'"):
            loss.setWeight_(value)


# --- collections, data, text ------------------------------------------------------------------------------------------


def test_arrays_are_sequences(MPS: Any) -> None:
    from Foundation import NSArray, NSMutableArray

    array = NSMutableArray.alloc().init()
    array.addObject_("a")
    array.append("b")
    array.insertObject_atIndex_("c", 0)
    assert (list(array), array.count(), len(array)) == (["c", "a", "b"], 3, 3)
    assert (array.objectAtIndex_(1), array[1], array.indexOfObject_("b"), "z" in array) == ("a", "a", 2, False)
    assert array == ["c", "a", "b"]
    assert isinstance(array, NSArray)
    assert isinstance(array, Sequence)
    assert isinstance(array[1:], NSArray)
    assert NSArray.arrayWithArray_(array) == NSArray(["c", "a", "b"])
    array[0] = "d"
    array.removeObjectAtIndex_(1)
    assert list(array) == ["d", "b"]
    assert (array.firstObject(), array.lastObject(), NSArray.array().firstObject()) == ("d", "b", None)
    with pytest.raises(IndexError, match="NSRangeException") as fault:
        array.objectAtIndex_(5)
    assert fault.value._pyobjc_info_["name"] == "NSRangeException"
    with pytest.raises(AttributeError):
        NSArray([]).addObject_(1)


def test_dictionaries_sets_and_numbers() -> None:
    from Foundation import NSDictionary, NSMutableDictionary, NSNumber, NSSet, NSString

    dictionary = NSMutableDictionary.dictionaryWithDictionary_({"a": 1})
    dictionary.setObject_forKey_(2, "b")
    assert dict(dictionary) == {"a": 1, "b": 2}
    assert (dictionary.objectForKey_("b"), dictionary.objectForKey_("z"), dictionary.get("z", 5)) == (2, None, 5)
    assert isinstance(dictionary, Mapping)
    assert dictionary == NSDictionary({"a": 1, "b": 2})
    assert list(dictionary.allKeys()) == ["a", "b"]
    assert NSSet.setWithArray_([1, 1, 2]).count() == 2
    number = NSNumber.numberWithFloat_(2.5)
    assert (number, number.intValue(), number.floatValue(), number.boolValue()) == (2.5, 2, 2.5, True)
    assert NSNumber.numberWithInt_(7).doubleValue() == 7.0
    assert NSNumber.numberWithBool_(3) is True
    assert NSString.stringWithString_("ü").UTF8String() == "ü".encode()


def test_data_is_bytes() -> None:
    from Foundation import NSData, NSMutableData

    data = NSData.dataWithBytes_length_(np.arange(4, dtype=np.float32), 8)
    assert (data.length(), len(data), bytes(data)) == (8, 8, np.float32([0, 1]).tobytes())
    assert np.frombuffer(data.bytes(), np.float32).tolist() == [0, 1]
    assert data[:4] == bytes(4)
    assert data == bytes(data)
    changed = NSMutableData.dataWithLength_(3)
    changed.mutableBytes()[1] = 7
    changed.appendBytes_length_(b"xyz", 2)
    assert bytes(changed) == b"\0\7\0xy"
    changed.setLength_(2)
    assert bytes(changed) == b"\0\7"
    with pytest.raises(ValueError, match="Requesting buffer of 9, have buffer of 8"):
        NSData.dataWithBytes_length_(bytes(8), 9)
    with pytest.raises(TypeError, match="Expecting byte-buffer, got str"):
        NSData.dataWithBytes_length_("text", 4)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda it: it.dataWithBytes_length_(b"text", -1), "absurd length: 18446744073709551615"),
        (lambda it: it.dataWithBytes_length_(b"text", "1"), "depythonifying 'NSUInteger', got 'str'"),
        (lambda it: it.dataWithLength_(-1), "absurd length"),
        (lambda it: it.dataWithLength_([1, 2]), "depythonifying 'NSUInteger', got 'list'"),
        (lambda it: it.dataWithLength_(3).setLength_(-1), "absurd length"),
        (lambda it: it.dataWithLength_(3).appendBytes_length_(b"text", -1), "absurd length"),
        (lambda it: it.alloc().initWithBytes_length_(b"text", -1), "absurd length"),
    ],
)
def test_lengths_of_data_are_counts(call: Callable[[Any], Any], said: str) -> None:
    from Foundation import NSMutableData

    with pytest.raises(ValueError, match=said):
        call(NSMutableData)


def test_what_the_framework_gives_is_of_foundations_kinds(MPS: Any, device: Any) -> None:
    from Foundation import NSArray, NSData

    kernel = MPS.MPSCNNNeuronReLU(device=device, a=0.0)
    kernel.setLabel_("name")
    assert isinstance(kernel.label(), str)
    assert kernel.label().length() == 4
    values = np.float32([0.25, 0.5])
    given = NSData.dataWithBytes_length_(values, values.nbytes)
    neuron = MPS.MPSNNNeuronDescriptor.cnnNeuronPReLUDescriptorWithData_noCopy_(given, False)
    assert isinstance(neuron.data(), NSData)
    assert neuron.data() == given
    descriptor = MPS.MPSImageDescriptor(
        channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=1, height=1, featureChannels=1
    )
    allocator = MPS.MPSImage.defaultAllocator()
    command_buffer = device.newCommandQueue().commandBuffer()
    batch = allocator.imageBatchForCommandBuffer_imageDescriptor_kernel_count_(command_buffer, descriptor, kernel, 3)
    assert isinstance(batch, NSArray)
    assert [each.width() for each in batch] == [1, 1, 1]
    results = kernel.encodeBatchToCommandBuffer_sourceImages_(command_buffer, batch)
    assert (len(results), type(results[0])) == (3, MPS.MPSTemporaryImage)
    again = kernel.encodeBatchToCommandBuffer_sourceImages_(command_buffer, [batch[0], batch[2]])
    assert again.count() == 2


# --- exceptions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NSInvalidArgumentException", ValueError),
        ("NSRangeException", IndexError),
        ("NSMallocException", MemoryError),
        ("NSUnknownKeyException", KeyError),
        ("OwnException", "objc.error"),
    ],
)
def test_exceptions_become_those_of_python(name: str, kind: Any) -> None:
    import objc
    from Foundation import NSException

    exception = NSException.exceptionWithName_reason_userInfo_(name, "why", {"key": 1})
    with pytest.raises(objc.error if kind == "objc.error" else kind) as fault:
        exception.raise__()
    assert fault.value._pyobjc_info_ == {"name": name, "reason": "why", "userInfo": {"key": 1}}
    assert (exception.name(), exception.reason()) == (name, "why")
    assert repr(objc.NULL) == "objc.NULL"
    assert bool(objc.NULL)


def test_errors_of_openmps_are_of_the_kinds_that_pyobjc_raises(MPS: Any, device: Any) -> None:
    with pytest.raises(ValueError, match="MPSImage: image_descriptor.width"):
        MPS.MPSImage(device=device, imageDescriptor=MPS.MPSImageDescriptor(
            channelFormat=MPS.MPSImageFeatureChannelFormatFloat32, width=0, height=1, featureChannels=1))  # fmt: skip
