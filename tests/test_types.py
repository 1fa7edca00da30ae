"""Enumerations and structs have the framework's values and refuse what the framework's types cannot hold."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from in_one_test import in_one_test
from openmps import types
from openmps.errors import MPSArgumentError, MPSAttributeError, MPSTypeError

API = Path(__file__).resolve().parents[2] / "shared" / "spec" / "mps_api.json"

# The headers' values, written down independently of the module.
VALUES = """
MPSKernelOptions: NONE 0, SKIP_API_VALIDATION 1, ALLOW_REDUCED_PRECISION 2, DISABLE_INTERNAL_TILING 4,
    INSERT_DEBUG_GROUPS 8, VERBOSE 16
MPSImageEdgeMode: ZERO 0, CLAMP 1, MIRROR 2, MIRROR_WITH_EDGE 3, CONSTANT 4
MPSImageFeatureChannelFormat: NONE 0, UNORM8 1, UNORM16 2, FLOAT16 3, FLOAT32 4, RESERVED0 5, COUNT 6
MPSDataType: INVALID 0, FLOAT_BIT 0x10000000, FLOAT32 0x10000020, FLOAT16 0x10000010, SIGNED_BIT 0x20000000,
    INT_BIT 0x20000000, INT8 0x20000008, INT16 0x20000010, UINT8 8, UINT16 16, UINT32 32, NORMALIZED_BIT 0x40000000,
    UNORM1 0x40000001, UNORM8 0x40000008, INT32 0x20000020, INT64 0x20000040, UINT64 64, COMPLEX_BIT 0x01000000,
    COMPLEX_FLOAT32 0x11000040, COMPLEX_FLOAT16 0x11000020, ALTERNATE_ENCODING_BIT 0x80000000, BOOL 0x80000008
MPSAliasingStrategy: DEFAULT 0, DONT_CARE 0, SHALL_ALIAS 1, SHALL_NOT_ALIAS 2, ALIASING_RESERVED 3,
    PREFER_TEMPORARY_MEMORY 4, PREFER_NON_TEMPORARY_MEMORY 8
MPSPurgeableState: ALLOCATION_DEFERRED 0, KEEP_CURRENT 1, NON_VOLATILE 2, VOLATILE 3, EMPTY 4
CGColorSpace: SRGB 0, LINEAR_SRGB 1, DISPLAY_P3 2, GENERIC_GRAY_GAMMA2_2 3, LINEAR_GRAY 4
MPSAlphaType: NON_PREMULTIPLIED 0, ALPHA_IS_ONE 1, PREMULTIPLIED 2
MPSDataLayout: HEIGHT_X_WIDTH_X_FEATURE_CHANNELS 0, FEATURE_CHANNELS_X_HEIGHT_X_WIDTH 1
MPSStateResourceType: NONE 0, BUFFER 1, TEXTURE 2
MPSCustomKernelIndex: DEST_INDEX 0, SRC0_INDEX 0, SRC1_INDEX 1, SRC2_INDEX 2, SRC3_INDEX 3, SRC4_INDEX 4,
    USER_DATA_INDEX 30, DEST 0, DEST_INFO 0, SRC1_INFO 1, SRC2_INFO 2, SRC3_INFO 3, USER_DATA 30
MPSImageType: _2D 0, _2D_ARRAY 1, ARRAY2D 2, ARRAY2D_ARRAY 3, ARRAY_MASK 1, BATCH_MASK 2, TYPE_MASK 3, NO_ALPHA 4,
    _2D_NO_ALPHA 4, _2D_ARRAY_NO_ALPHA 5, ARRAY2D_NO_ALPHA 6, ARRAY2D_ARRAY_NO_ALPHA 7, TEXEL_FORMAT_MASK 0x38,
    TEXEL_FORMAT_SHIFT 3, TEXEL_FORMAT_STANDARD 0, TEXEL_FORMAT_UNORM8 8, TEXEL_FORMAT_FLOAT16 16,
    TEXEL_FORMAT_B_FLOAT16 24, BIT_COUNT 6, MASK 63
MPSDeviceCapsValues: NULL 0, SUPPORTS_READABLE_ARRAY_OF_TEXTURES 1, SUPPORTS_WRITABLE_ARRAY_OF_TEXTURES 2,
    SUPPORTS_READ_WRITE_TEXTURES 4, SUPPORTS_SIMDGROUP_BARRIER 8, SUPPORTS_QUAD_SHUFFLE 16, SUPPORTS_SIMD_SHUFFLE 32,
    SUPPORTS_SIMD_REDUCTION 64, SUPPORTS_FLOAT32_FILTERING 128, SUPPORTS_NORM16_BICUBIC_FILTERING 256,
    SUPPORTS_FLOAT16_BICUBIC_FILTERING 512, IS_APPLE_DEVICE 1024, SUPPORTS_SIMD_SHUFFLE_AND_FILL 2048, LAST 4096
MPSCNNConvolutionFlags: NONE 0
MPSCNNBinaryConvolutionFlags: NONE 0, USE_BETA_SCALING 1
MPSCNNBinaryConvolutionType: BINARY_WEIGHTS 0, XNOR 1, AND 2
MPSNNConvolutionAccumulatorPrecisionOption: HALF 0, FLOAT 1
MPSNNTrainingStyle: UPDATE_DEVICE_NONE 0, UPDATE_DEVICE_CPU 1, UPDATE_DEVICE_GPU 2
MPSCNNBatchNormalizationFlags: DEFAULT 0, CALCULATE_STATISTICS_AUTOMATIC 0, CALCULATE_STATISTICS_ALWAYS 1,
    CALCULATE_STATISTICS_NEVER 2, CALCULATE_STATISTICS_MASK 3
MPSNNPaddingMethod: ALIGN_CENTERED 0, ALIGN_TOP_LEFT 1, ALIGN_BOTTOM_RIGHT 2, ALIGN_RESERVED 3, ALIGN_MASK 3,
    ADD_REMAINDER_TO_TOP_LEFT 0, ADD_REMAINDER_TO_TOP_RIGHT 4, ADD_REMAINDER_TO_BOTTOM_LEFT 8,
    ADD_REMAINDER_TO_BOTTOM_RIGHT 12, ADD_REMAINDER_TO_MASK 12, SIZE_VALID_ONLY 0, SIZE_SAME 16, SIZE_FULL 32,
    SIZE_RESERVED 48, SIZE_MASK 2032, CUSTOM_WHITELIST_FOR_NODE_FUSION 8192, CUSTOM_ALLOW_FOR_NODE_FUSION 8192,
    CUSTOM 16384, EXCLUDE_EDGES 32768
MPSCNNLossType: MEAN_ABSOLUTE_ERROR 0, MEAN_SQUARED_ERROR 1, SOFT_MAX_CROSS_ENTROPY 2, SIGMOID_CROSS_ENTROPY 3,
    CATEGORICAL_CROSS_ENTROPY 4, HINGE 5, HUBER 6, COSINE_DISTANCE 7, LOG 8, KULLBACK_LEIBLER_DIVERGENCE 9, COUNT 10
MPSCNNReductionType: NONE 0, SUM 1, MEAN 2, SUM_BY_NON_ZERO_WEIGHTS 3, COUNT 4
MPSCNNNeuronType: NONE 0, RELU 1, LINEAR 2, SIGMOID 3, HARD_SIGMOID 4, TANH 5, ABSOLUTE 6, SOFT_PLUS 7, SOFT_SIGN 8,
    ELU 9, PRELU 10, RELU_N 11, POWER 12, EXPONENTIAL 13, LOGARITHM 14, GELU 15, COUNT 16
MPSNNComparisonType: EQUAL 0, NOT_EQUAL 1, LESS 2, LESS_OR_EQUAL 3, GREATER 4, GREATER_OR_EQUAL 5
MPSCNNConvolutionGradientOption: GRADIENT_WITH_DATA 1, GRADIENT_WITH_WEIGHTS_AND_BIAS 2, ALL 3
MPSCNNWeightsQuantizationType: NONE 0, LINEAR 1, LOOKUP_TABLE 2
MPSCNNConvolutionWeightsLayout: OHWI 0
MPSNNRegularizationType: NONE 0, L1 1, L2 2
MPSRNNSequenceDirection: FORWARD 0, BACKWARD 1
MPSRNNBidirectionalCombineMode: NONE 0, ADD 1, CONCATENATE 2
MPSMatrixRandomDistribution: DEFAULT 1, UNIFORM 2, NORMAL 3
MPSMatrixDecompositionStatus: SUCCESS 0, FAILURE -1, SINGULAR -2, NON_POSITIVE_DEFINITE -3
MTLStorageMode: SHARED 0, MANAGED 1, PRIVATE 2, MEMORYLESS 3
MTLCPUCacheMode: DEFAULT_CACHE 0, WRITE_COMBINED 1
MTLResourceOptions: CPU_CACHE_MODE_DEFAULT_CACHE 0, CPU_CACHE_MODE_WRITE_COMBINED 1, STORAGE_MODE_SHARED 0,
    STORAGE_MODE_MANAGED 0x10, STORAGE_MODE_PRIVATE 0x20, STORAGE_MODE_MEMORYLESS 0x30,
    HAZARD_TRACKING_MODE_UNTRACKED 0x100
MTLTextureType: _1D 0, _1D_ARRAY 1, _2D 2, _2D_ARRAY 3, _2D_MULTISAMPLE 4, CUBE 5, CUBE_ARRAY 6, _3D 7,
    _2D_MULTISAMPLE_ARRAY 8, TEXTURE_BUFFER 9, TYPE_1D 0, TYPE_1D_ARRAY 1, TYPE_2D 2, TYPE_2D_ARRAY 3,
    TYPE_2D_MULTISAMPLE 4, TYPE_3D 7, TYPE_2D_MULTISAMPLE_ARRAY 8
MTLTextureUsage: UNKNOWN 0, SHADER_READ 1, SHADER_WRITE 2, RENDER_TARGET 4, PIXEL_FORMAT_VIEW 16
MTLPixelFormat: INVALID 0, R8_UNORM 10, RG8_UNORM 30, RGBA8_UNORM 70, R16_UNORM 20, RG16_UNORM 60, RGBA16_UNORM 110,
    R16_FLOAT 25, RG16_FLOAT 65, RGBA16_FLOAT 115, R32_FLOAT 55, RG32_FLOAT 105, RGBA32_FLOAT 125, R8_UNORM_SRGB 11,
    RG8_UNORM_SRGB 31, RGBA8_UNORM_SRGB 71, BGRA8_UNORM 80, BGRA8_UNORM_SRGB 81
MTLCommandBufferStatus: NOT_ENQUEUED 0, ENQUEUED 1, COMMITTED 2, SCHEDULED 3, COMPLETED 4, ERROR 5
MTLCommandBufferErrorCode: NONE 0, INTERNAL 1, TIMEOUT 2, PAGE_FAULT 3, BLACKLISTED 4, ACCESS_REVOKED 4,
    NOT_PERMITTED 7, OUT_OF_MEMORY 8, INVALID_RESOURCE 9, MEMORYLESS 10, DEVICE_REMOVED 11
"""


def _table(text: str) -> dict[str, dict[str, int]]:
    rows: dict[str, dict[str, int]] = {}
    for row in text.replace("\n    ", " ").strip().splitlines():
        name, members = row.split(": ")
        rows[name] = {member: int(value, 0) for member, value in (item.split() for item in members.split(","))}
    return rows


TABLE = _table(VALUES)
ENUMERATIONS = {
    name: value
    for name, value in vars(types).items()
    if isinstance(value, type) and issubclass(value, enum.Enum) and value.__module__.startswith(types.__name__)
}
FLAGS = {
    "MPSKernelOptions",
    "MPSAliasingStrategy",
    "MPSDeviceCapsValues",
    "MPSImageType",
    "MPSCNNBatchNormalizationFlags",
    "MPSNNPaddingMethod",
    "MPSCNNConvolutionGradientOption",
    "MTLResourceOptions",
    "MTLTextureUsage",
}


@in_one_test
@pytest.mark.parametrize("name", TABLE)
def test_values_are_the_headers(name: str) -> None:
    assert {member: int(value) for member, value in getattr(types, name).__members__.items()} == TABLE[name]


def test_recurrent_matrices_count_up_in_the_headers_order() -> None:
    members = types.MPSRNNMatrixId.__members__
    assert [int(value) for value in members.values()] == list(range(30))
    gates = {name: sum(member.startswith(name) for member in members) for name in ("SINGLE_GATE", "LSTM", "GRU")}
    assert gates == {"SINGLE_GATE": 3, "LSTM": 16, "GRU": 10}
    assert types.MPSRNNMatrixId.COUNT == 29


def test_every_enumeration_is_in_the_table() -> None:
    assert set(ENUMERATIONS) == {*TABLE, "MPSRNNMatrixId"}


@pytest.mark.skipif(not API.is_file(), reason="the listing of the framework's public names is not beside this checkout")
def test_every_enumeration_of_the_framework_is_here() -> None:
    def plain(name: str) -> str:
        return name.replace("_", "").lower()

    def shared(name: str, value: str) -> int:
        return next((n for n, pair in enumerate(zip(name, value, strict=False)) if pair[0] != pair[1]), len(name))

    for name, listed in json.loads(API.read_text())["enums"].items():
        expected = {
            plain(value[shared(name, value) :]): number
            for value, number in listed["values"].items()
            if isinstance(number, int)  # the rest are expressions of other headers' constants
        }
        found = {plain(member): int(number) for member, number in getattr(types, name).__members__.items()}
        assert expected.items() <= found.items(), name


@in_one_test
@pytest.mark.parametrize("name", ENUMERATIONS)
def test_options_are_flags_and_the_rest_are_not(name: str) -> None:
    assert issubclass(ENUMERATIONS[name], enum.IntFlag if name in FLAGS else enum.IntEnum)


def test_options_combine_and_come_back_from_numbers() -> None:
    method = types.MPSNNPaddingMethod
    policy = method.ALIGN_CENTERED | method.ADD_REMAINDER_TO_BOTTOM_RIGHT | method.SIZE_SAME | method.CUSTOM
    assert policy == 0x401C
    assert isinstance(policy, method)
    assert method(0x401C) is policy
    assert policy & method.SIZE_MASK == method.SIZE_SAME
    assert types.MPSImageType(19) & types.MPSImageType.TEXEL_FORMAT_MASK == types.MPSImageType.TEXEL_FORMAT_FLOAT16


def test_plain_enumerations_refuse_other_numbers() -> None:
    with pytest.raises(ValueError, match="9 is not a valid MPSImageEdgeMode"):
        types.MPSImageEdgeMode(9)


def test_every_public_type_names_its_header() -> None:
    named = {name: value for name, value in vars(types).items() if callable(value) and not name.startswith("_")}
    public = [value for value in named.values() if value.__module__.startswith(types.__name__)]
    assert len(public) == len(ENUMERATIONS) + len(STRUCTS) + 1  # and one function
    assert [value.__name__ for value in public if ".h" not in (value.__doc__ or "")] == []


# --- structs ---------------------------------------------------------------------------------------------------------

STRUCTS = [
    types.MTLOrigin(1, 2, 3),
    types.MTLSize(4, 5, 6),
    types.MTLRegion(types.MTLOrigin(1, 2, 3), types.MTLSize(4, 5, 6)),
    types.MPSOffset(-1, 2, -3),
    types.MPSOrigin(0.5, 1.5, 2.5),
    types.MPSSize(0.5, 1.5, 2.5),
    types.MPSRegion(types.MPSOrigin(0.5, 1.5, 2.5), types.MPSSize(3.5, 4.5, 5.5)),
    types.MPSScaleTransform(2.0, 3.0, 4.0, 5.0),
    types.MPSImageHistogramInfo(4, True, (0.0, 0.0, 0.0, -1.0), (1.0, 2.0, 3.0, 4.0)),
    types.CGColorConversionInfo(types.CGColorSpace.SRGB, types.CGColorSpace.DISPLAY_P3),
    types.MPSImageCoordinate(1, 2, 3),
    types.MPSImageRegion(types.MPSImageCoordinate(1, 2, 3), types.MPSImageCoordinate(4, 5, 6)),
    types.MPSImageReadWriteParams(4, 8),
    types.MPSDimensionSlice(1, 2),
    types.MPSMatrixCopyOffsets(1, 2, 3, 4),
    types.MPSMatrixOffset(1, 2),
    types.MPSStateTextureInfo(1, 2, 3, 4, types.MTLPixelFormat.R8_UNORM),
    types.NSRange(1, 2),
]


def _name(struct: object) -> str:
    return type(struct).__name__


def _integer_fields(struct: object) -> list[str]:
    names = [field.name for field in dataclasses.fields(struct)]
    return [name for name in names if type(getattr(struct, name)) is int]


UNSIGNED = [(struct, name) for struct in STRUCTS for name in _integer_fields(struct) if _name(struct) != "MPSOffset"]


def test_every_struct_is_tried() -> None:
    all_structs = {
        name for name, value in vars(types).items() if isinstance(value, type) and hasattr(value, "__slots__")
    }
    assert {_name(struct) for struct in STRUCTS} == {
        name for name in all_structs if dataclasses.is_dataclass(getattr(types, name))
    }


@in_one_test
@pytest.mark.parametrize("struct", STRUCTS, ids=_name)
def test_structs_are_values(struct: object) -> None:
    same = dataclasses.replace(struct)
    assert same == struct
    assert hash(same) == hash(struct)
    assert pickle.loads(pickle.dumps(struct)) == struct
    assert copy.deepcopy(struct) == struct
    name = dataclasses.fields(struct)[0].name
    with pytest.raises(MPSAttributeError, match=rf"{name} is read-only\. Make another with \w+\(…, {name}=…\)"):
        setattr(struct, name, getattr(struct, name))
    with pytest.raises(MPSAttributeError, match=f"{name} is read-only"):
        delattr(struct, name)
    with pytest.raises(MPSAttributeError, match=f"wide is no field: those are {name}"):
        struct.wide = 1  # type: ignore[attr-defined]


@in_one_test
@pytest.mark.parametrize(
    ("struct", "name"), UNSIGNED, ids=lambda value: value if isinstance(value, str) else _name(value)
)
def test_unsigned_components_refuse_negative_numbers(struct: object, name: str) -> None:
    with pytest.raises(MPSArgumentError, match=rf"{_name(struct)}: {name} must be at least 0, got -1"):
        dataclasses.replace(struct, **{name: -1})


@pytest.mark.parametrize("value", [1.0, "1", None])
def test_integer_components_refuse_what_is_no_integer(value: object) -> None:
    with pytest.raises(MPSTypeError, match="MPSOffset: y must be an integer"):
        types.MPSOffset(0, value, 0)  # type: ignore[arg-type]


def test_components_take_numpy_scalars_and_hold_python_numbers() -> None:
    size = types.MTLSize(np.int64(3), np.uint8(4), np.int32(5))  # type: ignore[arg-type]
    assert size == types.MTLSize(3, 4, 5)
    assert type(size.width) is int
    origin = types.MPSOrigin(1, np.float32(0.5))  # type: ignore[arg-type]
    assert origin == types.MPSOrigin(1.0, 0.5, 0.0)
    assert type(origin.x) is float


@pytest.mark.parametrize("value", ["wide", None, [1.0]])
def test_real_components_refuse_what_is_no_number(value: object) -> None:
    with pytest.raises(MPSTypeError, match="MPSSize: width must be a real number"):
        types.MPSSize(value, 1.0)  # type: ignore[arg-type]


def test_regions_refuse_other_structs() -> None:
    with pytest.raises(MPSTypeError, match="MTLRegion: size must be an MTLSize"):
        types.MTLRegion(types.MTLOrigin(), types.MTLOrigin())  # type: ignore[arg-type]


def test_defaults() -> None:
    assert types.MPSOffset() == types.MPSOffset(0, 0, 0)
    assert types.MTLSize(2, 3).depth == 1
    assert types.MPSScaleTransform() == types.MPSScaleTransform(1.0, 1.0, 0.0, 0.0)
    assert types.MPSStateTextureInfo().texture_type == 0


def test_the_clip_rectangle_that_clips_nothing() -> None:
    assert types.MPSRectNoClip.origin == types.MTLOrigin(0, 0, 0)
    assert dataclasses.astuple(types.MPSRectNoClip.size) == (0xFFFFFFFFFFFFFFFF,) * 3


# --- facts of formats ------------------------------------------------------------------------------------------------


def test_facts_of_channel_formats_agree_with_numpy() -> None:
    formats = types.MPSImageFeatureChannelFormat
    stored = {formats.UNORM8, formats.UNORM16, formats.FLOAT16, formats.FLOAT32}
    assert set(types.NUMPY_DTYPES) == set(types.ELEMENT_BYTES) == set(types.PRECISION_BITS) == stored
    for channel_format, dtype in types.NUMPY_DTYPES.items():
        assert types.ELEMENT_BYTES[channel_format] == dtype.itemsize
        bits = np.finfo(dtype).nmant + 1 if dtype.kind == "f" else np.iinfo(dtype).bits
        assert types.PRECISION_BITS[channel_format] == bits


def test_facts_of_data_types_agree_with_numpy() -> None:
    for data_type, dtype in types.DATA_TYPE_DTYPES.items():
        assert types.MPSSizeofMPSDataType(data_type) == dtype.itemsize
        assert bool(data_type & types.MPSDataType.FLOAT_BIT) == (dtype.kind in "fc")
        assert bool(data_type & types.MPSDataType.SIGNED_BIT) == (dtype.kind == "i")
    assert types.MPSSizeofMPSDataType(types.MPSDataType.COMPLEX_FLOAT16) == 4
    assert types.MPSSizeofMPSDataType(types.MPSDataType.UNORM1) == 0
