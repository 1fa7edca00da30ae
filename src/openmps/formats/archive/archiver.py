"""MPSKeyedArchiver and MPSKeyedUnarchiver (MPSKeyedUnarchiver.h, macOS 10.13.4)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

from openmps.core.lifetime import check_is_device
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.formats.archive.container import pack, unpack
from openmps.formats.archive.values import Reader, Registry, Writer
from openmps.formats.atomic import write_atomic
from openmps.formats.paths import read_file
from openmps.metal.device import MTLDevice

Data = bytes | bytearray | memoryview
_T = TypeVar("_T")


class MPSKeyedArchiver:
    """Turns kernels, descriptors and padding policies into bytes.

    Kept are the arguments that an object was made with and its writable properties: label, options, offsets, clip
    rectangle, channel offsets, edge modes, padding, allocator, and what the class adds. Not kept: the device, states,
    images and gradients. A convolution keeps its data source if that has a method ``archived()``, which returns a
    dictionary of numbers, text and arrays, and otherwise the float32 weights and biases that it computes with now;
    so do the normalizations. A convolution's gradient kernel keeps its data source alike. A custom padding policy or
    image allocator must have ``archived()``.

    The bytes are a safetensors file with a JSON document and a SHA-256 checksum in its header. Our counterpart of the
    framework's use of NSKeyedArchiver.
    """

    @staticmethod
    def archived_data(object: Any, requiring_secure_coding: bool = True) -> bytes:
        """An object as bytes. Archives are always secure: reading one never runs code that it names."""
        if not requiring_secure_coding:
            rule = "must be True: there are no other archives"
            raise MPSArgumentError("MPSKeyedArchiver.archived_data", "requiring_secure_coding", rule, False)
        writer = Writer()
        root = writer.value(object)
        return pack({"root": root, "objects": writer.objects}, writer.arrays)

    @staticmethod
    def archive(object: Any, path: str | os.PathLike[str]) -> None:
        """Write an object to a file, atomically."""
        write_atomic(path, MPSKeyedArchiver.archived_data(object))


class MPSKeyedUnarchiver:
    """Makes archived objects again, on a device (MPSKeyedUnarchiver.h, macOS 10.13.4).

    ``registry`` maps the names of classes that are not openmps' own (data sources, padding policies, allocators) to
    functions from the dictionary that their ``archived()`` gave to an object. Bytes that are damaged, that name a class
    outside the registry, or whose values an object refuses raise `MPSFileError`; nothing named in them is imported.
    """

    def __init__(
        self,
        init_for_reading_from_data: Data | None = None,
        device: MTLDevice | None = None,
        *,
        init_for_reading_with_data: Data | None = None,
        registry: Registry | None = None,
    ) -> None:
        who = type(self).__name__
        if device is None:
            raise MPSTypeError(who, "device", "must be given: archives hold no device", None)
        self._device = check_is_device(who, "device", device)
        data = init_for_reading_from_data if init_for_reading_from_data is not None else init_for_reading_with_data
        self._objects = self._read(data, registry or {}) if data is not None else None

    def _read(self, data: Data, registry: Registry) -> Any:
        who = type(self).__name__
        if not isinstance(data, bytes | bytearray | memoryview):
            raise MPSTypeError(who, "data", "must be bytes", type(data).__name__)
        document, arrays = unpack(bytes(data), who)
        entries = document.get("objects")
        if not isinstance(entries, list) or "root" not in document:
            raise MPSFileError(who, "archive", "must have objects and a root", sorted(map(str, document))[:8])
        reader = Reader(who, arrays, self._device, registry)
        reader.things(entries)
        try:
            return reader.value(document["root"])
        except (TypeError, ValueError, KeyError, IndexError, RecursionError) as fault:
            raise MPSFileError(who, "archive's root", "cannot be made again", fault) from fault

    def decode_root_object(self) -> Any:
        """The object that was archived."""
        if self._objects is None:
            raise MPSTypeError(type(self).__name__, "decode_root_object", "needs data", None, "Pass the bytes at once")
        return self._objects

    def mps_mtl_device(self) -> MTLDevice:
        """The device that objects are made on."""
        return self._device

    @staticmethod
    def unarchived_object_of_class(  # the framework's own name of the argument
        cls: type[_T],  # pyright: ignore[reportSelfClsParameterName]
        from_data: Data,
        device: MTLDevice,
        *,
        registry: Registry | None = None,
    ) -> _T:
        """The archived object, which must be of a class."""
        return MPSKeyedUnarchiver.unarchived_object_of_classes([cls], from_data, device, registry=registry)

    @staticmethod
    def unarchived_object_of_classes(
        classes: Sequence[type], from_data: Data, device: MTLDevice, *, registry: Registry | None = None
    ) -> Any:
        """The archived object, which must be of one of some classes."""
        found = MPSKeyedUnarchiver(from_data, device, registry=registry).decode_root_object()
        if not isinstance(found, tuple(classes)):
            names = " or ".join(each.__name__ for each in classes)
            raise MPSTypeError("MPSKeyedUnarchiver", "archive", f"must hold a {names}", type(found).__name__)
        return found

    @classmethod
    def unarchive_top_level_object(cls, data: Data, device: MTLDevice, *, registry: Registry | None = None) -> Any:
        """The archived object, of whatever class."""
        return cls(data, device, registry=registry).decode_root_object()

    @classmethod
    def unarchive_object(
        cls,
        data: Data | None = None,
        device: MTLDevice | None = None,
        *,
        file: str | os.PathLike[str] | None = None,
        registry: Registry | None = None,
    ) -> Any:
        """The archived object of some bytes or of a file. The framework's older form, nil there from macOS 10.14 on."""
        if (data is None) == (file is None):
            raise MPSTypeError(
                f"{cls.__name__}.unarchive_object", "data", "or file must be given, one of the two", None
            )
        held = data if file is None else read_file(file, cls.__name__)
        return cls(held, device, registry=registry).decode_root_object()
