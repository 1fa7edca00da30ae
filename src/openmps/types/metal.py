"""Enumerations of Metal."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from openmps.spellings import NamedMembers


class MTLStorageMode(IntEnum, metaclass=NamedMembers):
    """Where a resource lives and who may touch it (MTLResource.h, macOS 10.11)."""

    SHARED = 0  # host and device see one memory, coherent where a command buffer ends
    MANAGED = 1  # two copies, kept equal by explicit synchronization
    PRIVATE = 2  # the device only
    MEMORYLESS = 3  # no memory of its own


class MTLCPUCacheMode(IntEnum, metaclass=NamedMembers):
    """How the host caches a resource (MTLResource.h, macOS 10.11)."""

    DEFAULT_CACHE = 0
    WRITE_COMBINED = 1  # for memory that the host writes and never reads


class MTLResourceOptions(IntFlag, metaclass=NamedMembers):
    """Cache mode (bits 0-3), storage mode (4-7) and hazard tracking (8) in one number (MTLResource.h, macOS 10.11)."""

    CPU_CACHE_MODE_DEFAULT_CACHE = 0
    CPU_CACHE_MODE_WRITE_COMBINED = 1
    STORAGE_MODE_SHARED = 0
    STORAGE_MODE_MANAGED = 16
    STORAGE_MODE_PRIVATE = 32
    STORAGE_MODE_MEMORYLESS = 48
    HAZARD_TRACKING_MODE_UNTRACKED = 0x100


class MTLTextureType(IntEnum, metaclass=NamedMembers):
    """The dimensions of a texture (MTLTexture.h, macOS 10.11).

    The ``TYPE_…`` names are Swift's: the same members, for tools that take a leading underscore for a private name.
    """

    _1D = 0
    _1D_ARRAY = 1
    _2D = 2
    _2D_ARRAY = 3
    _2D_MULTISAMPLE = 4
    CUBE = 5
    CUBE_ARRAY = 6
    _3D = 7
    _2D_MULTISAMPLE_ARRAY = 8
    TEXTURE_BUFFER = 9
    TYPE_1D = 0
    TYPE_1D_ARRAY = 1
    TYPE_2D = 2
    TYPE_2D_ARRAY = 3
    TYPE_2D_MULTISAMPLE = 4
    TYPE_3D = 7
    TYPE_2D_MULTISAMPLE_ARRAY = 8


class MTLTextureUsage(IntFlag, metaclass=NamedMembers):
    """What a texture will be used for (MTLTexture.h, macOS 10.11)."""

    UNKNOWN = 0
    SHADER_READ = 1
    SHADER_WRITE = 2
    RENDER_TARGET = 4
    PIXEL_FORMAT_VIEW = 16


class MTLPixelFormat(IntEnum, metaclass=NamedMembers):
    """The pixel formats that images and textures are stored in (MTLPixelFormat.h, macOS 10.11).

    ``R8_UNORM_SRGB`` and ``RG8_UNORM_SRGB`` are of macOS 11.
    """

    INVALID = 0
    R8_UNORM = 10
    R8_UNORM_SRGB = 11
    R16_UNORM = 20
    R16_FLOAT = 25
    RG8_UNORM = 30
    RG8_UNORM_SRGB = 31
    R32_FLOAT = 55
    RG16_UNORM = 60
    RG16_FLOAT = 65
    RGBA8_UNORM = 70
    RGBA8_UNORM_SRGB = 71
    BGRA8_UNORM = 80
    BGRA8_UNORM_SRGB = 81
    RG32_FLOAT = 105
    RGBA16_UNORM = 110
    RGBA16_FLOAT = 115
    RGBA32_FLOAT = 125


class MTLCommandBufferStatus(IntEnum, metaclass=NamedMembers):
    """How far a command buffer has come (MTLCommandBuffer.h, macOS 10.11)."""

    NOT_ENQUEUED = 0
    ENQUEUED = 1  # its place in the queue is fixed
    COMMITTED = 2
    SCHEDULED = 3  # what it depends on is done
    COMPLETED = 4
    ERROR = 5  # aborted; the command buffer's error says why


class MTLCommandBufferErrorCode(IntEnum, metaclass=NamedMembers):
    """Why a command buffer was aborted: Metal's enumeration MTLCommandBufferError (MTLCommandBuffer.h, macOS 10.11).

    The exception class ``MTLCommandBufferError`` has the name of the enumeration, hence this one's suffix.
    """

    NONE = 0
    INTERNAL = 1
    TIMEOUT = 2
    PAGE_FAULT = 3
    BLACKLISTED = 4
    ACCESS_REVOKED = 4  # the name of BLACKLISTED since macOS 13
    NOT_PERMITTED = 7
    OUT_OF_MEMORY = 8
    INVALID_RESOURCE = 9
    MEMORYLESS = 10
    DEVICE_REMOVED = 11
