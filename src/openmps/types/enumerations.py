"""Enumerations of Metal Performance Shaders, header by header."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from openmps.spellings import NamedMembers

# --- MPSCoreTypes.h ------------------------------------------------------------------------------------------------


class MPSKernelOptions(IntFlag, metaclass=NamedMembers):
    """Options of every kernel (MPSCoreTypes.h, macOS 10.13)."""

    NONE = 0
    SKIP_API_VALIDATION = 1  # arguments are not checked; a wrong one has undefined results
    ALLOW_REDUCED_PRECISION = 2  # intermediate values may be less precise than the destination's format
    DISABLE_INTERNAL_TILING = 4  # process the image in one piece
    INSERT_DEBUG_GROUPS = 8  # wrap each encode in a debug group named by the kernel's label
    VERBOSE = 16  # print advice while running


class MPSImageEdgeMode(IntEnum, metaclass=NamedMembers):
    """What a filter reads where its window leaves the source image (MPSCoreTypes.h, macOS 10.13).

    The last three came with macOS 10.14.1 and are defined for ``MPSNNPad`` only.
    """

    ZERO = 0
    CLAMP = 1  # the nearest pixel of the edge
    MIRROR = 2  # reflected about the centre of the edge pixel, which is not repeated
    MIRROR_WITH_EDGE = 3  # reflected about the border, so the edge pixel is repeated
    CONSTANT = 4  # a value that the filter holds


class MPSImageFeatureChannelFormat(IntEnum, metaclass=NamedMembers):
    """How an image stores one feature channel (MPSCoreTypes.h, macOS 10.13).

    ``ELEMENT_BYTES``, ``PRECISION_BITS`` and ``NUMPY_DTYPES`` hold the facts of the four formats that can be stored.
    """

    NONE = 0  # by context: not valid, or the framework's choice
    UNORM8 = 1  # 0 … 255 stands for 0 … 1
    UNORM16 = 2  # 0 … 65535 stands for 0 … 1
    FLOAT16 = 3  # IEEE 754 half precision
    FLOAT32 = 4  # IEEE 754 single precision
    RESERVED0 = 5  # macOS 10.15
    COUNT = 6  # 5 before macOS 10.15


class CGColorSpace(IntEnum, metaclass=NamedMembers):
    """The colour spaces that conversions know, of those that Core Graphics names (CGColorSpace.h, macOS 10.12).

    ``kCGColorSpaceDisplayP3`` is ``CGColorSpace.DISPLAY_P3``. The numbers are ours: the framework's names are strings.
    """

    SRGB = 0  # primaries of BT.709, the curve of IEC 61966-2-1
    LINEAR_SRGB = 1  # the same primaries, no curve
    DISPLAY_P3 = 2  # primaries of P3, white of sRGB, its curve
    GENERIC_GRAY_GAMMA2_2 = 3  # one component, to the power 2.2
    LINEAR_GRAY = 4  # one component, no curve

    @property
    def number_of_components(self) -> int:
        """1 of grey, 3 of colours."""
        return 1 if self in (CGColorSpace.GENERIC_GRAY_GAMMA2_2, CGColorSpace.LINEAR_GRAY) else 3


class MPSAlphaType(IntEnum, metaclass=NamedMembers):
    """What the fourth component of a texture's pixels is to its colours (MPSImageTypes.h, macOS 10.13)."""

    NON_PREMULTIPLIED = 0  # how much of the colour shows; colours are not multiplied with it
    ALPHA_IS_ONE = 1  # 1, whatever is stored
    PREMULTIPLIED = 2  # colours are multiplied with it


class MPSDataType(IntEnum, metaclass=NamedMembers):
    """The type of an element of a buffer, vector or matrix (MPSCoreTypes.h, macOS 10.13).

    The low 16 bits are the size in bits, the high bits the kind of number. The ``…_BIT`` members are those bits.
    """

    INVALID = 0
    FLOAT_BIT = 0x10000000
    FLOAT32 = 0x10000020
    FLOAT16 = 0x10000010
    COMPLEX_BIT = 0x01000000
    COMPLEX_FLOAT32 = 0x11000040  # two float32, macOS 13.1
    COMPLEX_FLOAT16 = 0x11000020  # two float16, macOS 13.1
    SIGNED_BIT = 0x20000000
    INT_BIT = 0x20000000  # the older name of SIGNED_BIT
    INT8 = 0x20000008
    INT16 = 0x20000010
    INT32 = 0x20000020
    INT64 = 0x20000040  # macOS 11
    UINT8 = 8
    UINT16 = 16
    UINT32 = 32
    UINT64 = 64  # macOS 11
    ALTERNATE_ENCODING_BIT = 0x80000000  # macOS 12
    BOOL = 0x80000008  # macOS 12
    NORMALIZED_BIT = 0x40000000  # the value is divided by the type's largest one
    UNORM1 = 0x40000001
    UNORM8 = 0x40000008


class MPSAliasingStrategy(IntFlag, metaclass=NamedMembers):
    """Whether a view shares the memory of what it views or copies it (MPSCoreTypes.h, macOS 10.15)."""

    DEFAULT = 0  # share where possible, else copy
    DONT_CARE = 0
    SHALL_ALIAS = 1
    SHALL_NOT_ALIAS = 2
    ALIASING_RESERVED = 3
    PREFER_TEMPORARY_MEMORY = 4  # a copy lives in temporary memory
    PREFER_NON_TEMPORARY_MEMORY = 8


# --- MPSImage.h, MPSState.h ----------------------------------------------------------------------------------------


class MPSPurgeableState(IntEnum, metaclass=NamedMembers):
    """Whether the system may take an image's memory back (MPSImage.h, macOS 10.13); from 1 on Metal's own values."""

    ALLOCATION_DEFERRED = 0  # there is no memory yet; requests to change the state are ignored
    KEEP_CURRENT = 1  # report the state, change nothing
    NON_VOLATILE = 2
    VOLATILE = 3  # the contents may be discarded
    EMPTY = 4  # the contents are discarded


class MPSDataLayout(IntEnum, metaclass=NamedMembers):
    """The order of elements in memory that an image is read into or written from (MPSImage.h, macOS 10.13)."""

    HEIGHT_X_WIDTH_X_FEATURE_CHANNELS = 0  # [image][y][x][channel]
    FEATURE_CHANNELS_X_HEIGHT_X_WIDTH = 1  # [image][channel][y][x]


class MPSStateResourceType(IntEnum, metaclass=NamedMembers):
    """The kind of a state's resource (MPSState.h, macOS 10.13.4)."""

    NONE = 0
    BUFFER = 1
    TEXTURE = 2


# --- MPSKernelTypes.h ----------------------------------------------------------------------------------------------


class MPSDeviceCapsValues(IntFlag, metaclass=NamedMembers):
    """What a device can do, as shaders see it (MPSKernelTypes.h, macOS 10.15)."""

    NULL = 0
    SUPPORTS_READABLE_ARRAY_OF_TEXTURES = 1
    SUPPORTS_WRITABLE_ARRAY_OF_TEXTURES = 2
    SUPPORTS_READ_WRITE_TEXTURES = 4
    SUPPORTS_SIMDGROUP_BARRIER = 8
    SUPPORTS_QUAD_SHUFFLE = 16
    SUPPORTS_SIMD_SHUFFLE = 32
    SUPPORTS_SIMD_REDUCTION = 64
    SUPPORTS_FLOAT32_FILTERING = 128
    SUPPORTS_NORM16_BICUBIC_FILTERING = 256
    SUPPORTS_FLOAT16_BICUBIC_FILTERING = 512
    IS_APPLE_DEVICE = 1024
    SUPPORTS_SIMD_SHUFFLE_AND_FILL = 2048
    LAST = 4096


class MPSCustomKernelIndex(IntEnum, metaclass=NamedMembers):
    """Argument indices of a user's own shader (MPSKernelTypes.h, macOS 10.13).

    ``…_INDEX`` are the names since macOS 10.14. The texture indices of sources in macOS 10.13 depended on the platform
    and are not offered.
    """

    DEST_INDEX = 0
    SRC0_INDEX = 0
    SRC1_INDEX = 1
    SRC2_INDEX = 2
    SRC3_INDEX = 3
    SRC4_INDEX = 4
    USER_DATA_INDEX = 30
    DEST = 0
    DEST_INFO = 0
    SRC1_INFO = 1
    SRC2_INFO = 2
    SRC3_INFO = 3
    USER_DATA = 30


class MPSImageType(IntFlag, metaclass=NamedMembers):
    """The texture type of an image as a shader declares it (MPSKernelTypes.h, macOS 10.13).

    Bit 0: slices of a texture array; bit 1: a batch of textures; bit 2: fewer than 3 channels, hence no alpha; bits 3
    to 5 (macOS 13): the format of a texel.
    """

    _2D = 0
    _2D_ARRAY = 1
    ARRAY2D = 2
    ARRAY2D_ARRAY = 3
    ARRAY_MASK = 1
    BATCH_MASK = 2
    TYPE_MASK = 3
    NO_ALPHA = 4
    _2D_NO_ALPHA = 4
    _2D_ARRAY_NO_ALPHA = 5
    ARRAY2D_NO_ALPHA = 6
    ARRAY2D_ARRAY_NO_ALPHA = 7
    TEXEL_FORMAT_MASK = 0x38
    TEXEL_FORMAT_SHIFT = 3
    TEXEL_FORMAT_STANDARD = 0
    TEXEL_FORMAT_UNORM8 = 8
    TEXEL_FORMAT_FLOAT16 = 16
    TEXEL_FORMAT_B_FLOAT16 = 24
    BIT_COUNT = 6
    MASK = 63


# --- MPSNeuralNetworkTypes.h ---------------------------------------------------------------------------------------


class MPSCNNConvolutionFlags(IntEnum, metaclass=NamedMembers):
    """Options of a convolution's deprecated constructor (MPSNeuralNetworkTypes.h, macOS 10.13)."""

    NONE = 0


class MPSCNNBinaryConvolutionFlags(IntEnum, metaclass=NamedMembers):
    """Options of a binary convolution (MPSNeuralNetworkTypes.h, macOS 10.13)."""

    NONE = 0
    USE_BETA_SCALING = 1  # scale the result by the mean magnitude of the source under the window


class MPSCNNBinaryConvolutionType(IntEnum, metaclass=NamedMembers):
    """The operation of a binary convolution (MPSNeuralNetworkTypes.h, macOS 10.13)."""

    BINARY_WEIGHTS = 0  # a convolution whose weights are +1 and -1
    XNOR = 1  # source and weights are bits that stand for +1 and -1
    AND = 2  # source and weights are bits that stand for 0 and 1


class MPSNNConvolutionAccumulatorPrecisionOption(IntEnum, metaclass=NamedMembers):
    """The type that a convolution sums in (MPSNeuralNetworkTypes.h, macOS 10.13.4); the default is ``FLOAT``."""

    HALF = 0
    FLOAT = 1


class MPSNNTrainingStyle(IntEnum, metaclass=NamedMembers):
    """Where a trainable node's parameters are updated (MPSNeuralNetworkTypes.h, macOS 10.13.4)."""

    UPDATE_DEVICE_NONE = 0  # the node is not trained
    UPDATE_DEVICE_CPU = 1  # the data source is asked when the command buffer has completed, without one
    UPDATE_DEVICE_GPU = 2  # the data source is asked right after the gradient is encoded, with the command buffer


class MPSCNNBatchNormalizationFlags(IntFlag, metaclass=NamedMembers):
    """When batch normalization computes mean and variance (MPSNeuralNetworkTypes.h, macOS 10.13.4)."""

    DEFAULT = 0
    CALCULATE_STATISTICS_AUTOMATIC = 0  # in training graphs; elsewhere the data source gives them
    CALCULATE_STATISTICS_ALWAYS = 1
    CALCULATE_STATISTICS_NEVER = 2  # the data source gives them
    CALCULATE_STATISTICS_MASK = 3


class MPSNNPaddingMethod(IntFlag, metaclass=NamedMembers):
    """How large a filter's result is and where its first window lies (MPSNeuralNetworkTypes.h, macOS 10.13).

    One ``ALIGN_``, one ``ADD_REMAINDER_TO_`` and one ``SIZE_`` value together are a policy. As three of them are 0, no
    bits at all are a full policy. The remainder matters with ``ALIGN_CENTERED`` only: it is the side that gets the odd
    pixel.
    """

    ALIGN_CENTERED = 0  # missing pixels are spread over both sides
    ALIGN_TOP_LEFT = 1  # missing pixels go to the top and to the left
    ALIGN_BOTTOM_RIGHT = 2
    ALIGN_RESERVED = 3
    ALIGN_MASK = 3
    ADD_REMAINDER_TO_TOP_LEFT = 0
    ADD_REMAINDER_TO_TOP_RIGHT = 4
    ADD_REMAINDER_TO_BOTTOM_LEFT = 8
    ADD_REMAINDER_TO_BOTTOM_RIGHT = 12
    ADD_REMAINDER_TO_MASK = 12
    SIZE_VALID_ONLY = 0  # every window lies inside the source
    SIZE_SAME = 16  # source size / stride, rounded up
    SIZE_FULL = 32  # every window that touches the source
    SIZE_RESERVED = 48
    SIZE_MASK = 0x7F0
    CUSTOM_WHITELIST_FOR_NODE_FUSION = 0x2000  # the custom method does not stand in the way of fusing nodes
    CUSTOM_ALLOW_FOR_NODE_FUSION = 0x2000  # its name since macOS 13
    CUSTOM = 0x4000  # the policy object's own method decides
    EXCLUDE_EDGES = 0x8000  # average pooling counts only pixels of the source; other filters ignore it


# --- MPSCNNConvolution.h -------------------------------------------------------------------------------------------


class MPSCNNConvolutionGradientOption(IntFlag, metaclass=NamedMembers):
    """What a convolution gradient computes (MPSCNNConvolution.h, macOS 10.13.4)."""

    GRADIENT_WITH_DATA = 1  # with respect to the source image
    GRADIENT_WITH_WEIGHTS_AND_BIAS = 2
    ALL = 3


class MPSCNNWeightsQuantizationType(IntEnum, metaclass=NamedMembers):
    """How 8-bit weights are turned into numbers (MPSCNNConvolution.h, macOS 10.14)."""

    NONE = 0
    LINEAR = 1  # a lowest and a highest value for each output channel
    LOOKUP_TABLE = 2  # 256 values shared by all output channels


class MPSCNNConvolutionWeightsLayout(IntEnum, metaclass=NamedMembers):
    """The order of a convolution's weights in memory (MPSCNNConvolution.h, macOS 10.15)."""

    OHWI = 0  # [output channel][kernel y][kernel x][input channel / groups]


# --- MPSCNNNeuronType.h, MPSCNNTypes.h, MPSCNNMath.h, MPSNNOptimizers.h --------------------------------------------


class MPSCNNNeuronType(IntEnum, metaclass=NamedMembers):
    """Activation functions with parameters a, b and c (MPSCNNNeuronType.h, macOS 10.13)."""

    NONE = 0  # x
    RELU = 1  # x where x >= 0, else a x
    LINEAR = 2  # a x + b
    SIGMOID = 3  # 1 / (1 + e^-x)
    HARD_SIGMOID = 4  # a x + b, clamped to [0, 1]
    TANH = 5  # a tanh(b x)
    ABSOLUTE = 6  # |x|
    SOFT_PLUS = 7  # a ln(1 + e^(b x))
    SOFT_SIGN = 8  # x / (1 + |x|)
    ELU = 9  # x where x >= 0, else a (e^x - 1)
    PRELU = 10  # x where x >= 0, else a x with one a for each channel
    RELU_N = 11  # min(relu(x), b)
    POWER = 12  # (a x + b)^c
    EXPONENTIAL = 13  # c^(a x + b)
    LOGARITHM = 14  # log of a x + b to base c
    GELU = 15  # x (1 + erf(x / sqrt 2)) / 2, macOS 10.15
    COUNT = 16  # 15 before macOS 10.15


class MPSCNNLossType(IntEnum, metaclass=NamedMembers):
    """Loss functions (MPSCNNTypes.h, macOS 10.13.4)."""

    MEAN_ABSOLUTE_ERROR = 0
    MEAN_SQUARED_ERROR = 1
    SOFT_MAX_CROSS_ENTROPY = 2  # soft-max over the channels, then cross-entropy
    SIGMOID_CROSS_ENTROPY = 3
    CATEGORICAL_CROSS_ENTROPY = 4  # cross-entropy of values that are probabilities already
    HINGE = 5
    HUBER = 6
    COSINE_DISTANCE = 7
    LOG = 8
    KULLBACK_LEIBLER_DIVERGENCE = 9
    COUNT = 10


class MPSCNNReductionType(IntEnum, metaclass=NamedMembers):
    """How the losses of single elements become one number (MPSCNNTypes.h, macOS 10.13.4).

    Of the loss that is reported: none of them divides the gradient, which is that of the sum. A loss's weight scales
    both.
    """

    NONE = 0
    SUM = 1
    MEAN = 2  # the sum over the number of elements; over the pixels for SOFT_MAX_CROSS_ENTROPY
    SUM_BY_NON_ZERO_WEIGHTS = 3  # the sum over the number of weights that are not 0
    COUNT = 4


class MPSNNComparisonType(IntEnum, metaclass=NamedMembers):
    """The comparison of two images (MPSCNNMath.h, macOS 10.14.1)."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    LESS_OR_EQUAL = 3
    GREATER = 4
    GREATER_OR_EQUAL = 5


class MPSNNRegularizationType(IntEnum, metaclass=NamedMembers):
    """The penalty that an optimizer puts on large values (MPSNNOptimizers.h, macOS 10.14)."""

    NONE = 0
    L1 = 1  # the sum of magnitudes
    L2 = 2  # half the sum of squares


# --- MPSRNNLayer.h -------------------------------------------------------------------------------------------------


class MPSRNNSequenceDirection(IntEnum, metaclass=NamedMembers):
    """The order in which a recurrent layer reads its sequence (MPSRNNLayer.h, macOS 10.13)."""

    FORWARD = 0
    BACKWARD = 1


class MPSRNNBidirectionalCombineMode(IntEnum, metaclass=NamedMembers):
    """How the results of both directions are joined (MPSRNNLayer.h, macOS 10.13)."""

    NONE = 0  # two results
    ADD = 1
    CONCATENATE = 2  # along the feature channels


class MPSRNNMatrixId(IntEnum, metaclass=NamedMembers):
    """One weight matrix or bias vector of a recurrent layer (MPSRNNLayer.h, macOS 10.14)."""

    SINGLE_GATE_INPUT_WEIGHTS = 0
    SINGLE_GATE_RECURRENT_WEIGHTS = 1
    SINGLE_GATE_BIAS_TERMS = 2
    LSTM_INPUT_GATE_INPUT_WEIGHTS = 3
    LSTM_INPUT_GATE_RECURRENT_WEIGHTS = 4
    LSTM_INPUT_GATE_MEMORY_WEIGHTS = 5
    LSTM_INPUT_GATE_BIAS_TERMS = 6
    LSTM_FORGET_GATE_INPUT_WEIGHTS = 7
    LSTM_FORGET_GATE_RECURRENT_WEIGHTS = 8
    LSTM_FORGET_GATE_MEMORY_WEIGHTS = 9
    LSTM_FORGET_GATE_BIAS_TERMS = 10
    LSTM_MEMORY_GATE_INPUT_WEIGHTS = 11
    LSTM_MEMORY_GATE_RECURRENT_WEIGHTS = 12
    LSTM_MEMORY_GATE_MEMORY_WEIGHTS = 13
    LSTM_MEMORY_GATE_BIAS_TERMS = 14
    LSTM_OUTPUT_GATE_INPUT_WEIGHTS = 15
    LSTM_OUTPUT_GATE_RECURRENT_WEIGHTS = 16
    LSTM_OUTPUT_GATE_MEMORY_WEIGHTS = 17
    LSTM_OUTPUT_GATE_BIAS_TERMS = 18
    GRU_INPUT_GATE_INPUT_WEIGHTS = 19
    GRU_INPUT_GATE_RECURRENT_WEIGHTS = 20
    GRU_INPUT_GATE_BIAS_TERMS = 21
    GRU_RECURRENT_GATE_INPUT_WEIGHTS = 22
    GRU_RECURRENT_GATE_RECURRENT_WEIGHTS = 23
    GRU_RECURRENT_GATE_BIAS_TERMS = 24
    GRU_OUTPUT_GATE_INPUT_WEIGHTS = 25
    GRU_OUTPUT_GATE_RECURRENT_WEIGHTS = 26
    GRU_OUTPUT_GATE_INPUT_GATE_WEIGHTS = 27
    GRU_OUTPUT_GATE_BIAS_TERMS = 28
    COUNT = 29


# --- MPSMatrixRandom.h ---------------------------------------------------------------------------------------------


class MPSMatrixRandomDistribution(IntEnum, metaclass=NamedMembers):
    """How random numbers are distributed (MPSMatrixRandom.h, macOS 10.15)."""

    DEFAULT = 1  # the generator's words as they are
    UNIFORM = 2
    NORMAL = 3  # macOS 11


# --- MPSMatrixDecomposition.h --------------------------------------------------------------------------------------


class MPSMatrixDecompositionStatus(IntEnum, metaclass=NamedMembers):
    """What a factorization found, an int32 in a buffer (MPSMatrixDecomposition.h, macOS 10.13)."""

    SUCCESS = 0
    FAILURE = -1
    SINGULAR = -2
    NON_POSITIVE_DEFINITE = -3
