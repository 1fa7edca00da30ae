"""MPSKeyedArchiver and MPSKeyedUnarchiver (MPSKeyedUnarchiver.h, macOS 10.13.4)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from openmps.checks import NamedAttributes, described, flag
from openmps.core.lifetime import check_is_device
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.formats.archive.container import check_document, joined, parts_of, read_archive, unpack
from openmps.formats.archive.sources import StandIns
from openmps.formats.archive.values import DEEPEST, Reader, Registry, Writer
from openmps.formats.atomic import write_for
from openmps.formats.paths import path_of
from openmps.formats.safetensors_parts import SafetensorsParts
from openmps.metal.device import MTLDevice
from openmps.selectors import name_arguments

Data = bytes | bytearray | memoryview | os.PathLike[str]
"""An archive's bytes, or the ``Path`` of a file that holds them."""
_T = TypeVar("_T")


class MPSKeyedArchiver(NamedAttributes):
    """Turns kernels, descriptors, padding policies and graphs into bytes.

    Kept are the arguments that an object was made with and its writable properties: label, options, offsets, clip
    rectangle, channel offsets, edge modes, padding, allocator, and what the class adds. Of a graph: the filters that
    run with their kernels, the order of its inputs and results, handles, formats, exports. What is shared stays shared.

    Not kept: the device, images, states, gradients, nodes that a graph does not run. A data source is kept as its
    ``archived()`` describes it, a dictionary of numbers, text, arrays and such objects as archives hold; so weights
    that a graph has updated are in the archive if ``archived()`` brings them back first. In the place of a data source
    without that method the float32 weights and biases are kept that the kernel computes with now. A custom padding
    policy, image allocator or handle must have ``archived()``.

    The bytes are a safetensors file with a JSON document and a SHA-256 checksum in its header. Our counterpart of the
    framework's use of NSKeyedArchiver.
    """

    @staticmethod
    def archived_data(object: Any, requiring_secure_coding: bool = True) -> bytes:
        """An object as bytes. Archives are always secure: reading one never runs code that it names."""
        if not flag("MPSKeyedArchiver.archived_data", "requiring_secure_coding", requiring_secure_coding):
            rule = "must be True: there are no other archives"
            raise MPSArgumentError("MPSKeyedArchiver.archived_data", "requiring_secure_coding", rule, False)
        return archived_with(object, {})

    @staticmethod
    def archive(object: Any, path: str | os.PathLike[str]) -> None:
        """Write an object to a file, atomically."""
        if not isinstance(path, str | os.PathLike):
            rule = "must be the path of the file: the object comes first"
            raise MPSTypeError("MPSKeyedArchiver.archive", "path", rule, type(path).__name__)
        path = path_of(path, "MPSKeyedArchiver.archive")
        write_for("MPSKeyedArchiver.archive", path, _parts(object, {}))


def archived_with(object: Any, sources: Mapping[int, Any]) -> bytes:
    """An object as bytes, with other data sources in the place of some of its convolutions', by the `id` of these."""
    return joined(_parts(object, sources))


def _parts(object: Any, sources: Mapping[int, Any]) -> SafetensorsParts:
    """The archive as parts of a file."""
    writer = Writer(StandIns(sources))
    try:
        root = writer.value(object)
    except RecursionError as fault:
        rule = f"must not hold itself, nor lists deeper than {DEEPEST} in one another"
        raise MPSArgumentError("MPSKeyedArchiver.archived_data", "object", rule, type(object).__name__) from fault
    parts = parts_of({"root": root, "objects": writer.objects}, writer.arrays)
    check_document(parts, "MPSKeyedArchiver")  # what is given can be read
    return parts


@name_arguments
class MPSKeyedUnarchiver(NamedAttributes):
    """Makes archived objects again, on a device (MPSKeyedUnarchiver.h, macOS 10.13.4).

    ``registry`` maps the names of classes that are not openmps' own (data sources, padding policies, allocators,
    handles) to functions from the dictionary that their ``archived()`` gave to an object. Bytes that are damaged, that
    name a class outside the registry, or whose values an object refuses raise `MPSFileError`; nothing named in them is
    imported, and an error of a registered function is the ``__cause__``.

    What the framework marks unavailable, or has returned nil from macOS 10.14 on, raises `MPSTypeError` and says what
    to use: objects are made with a device, by `unarchived_object_of_class`.
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
        if init_for_reading_with_data is not None:
            raise _retired(f"{who}(init_for_reading_with_data=…)")
        if init_for_reading_from_data is None:
            raise _retired(f"{who}() without data")
        if device is None:
            raise MPSTypeError(who, "device", "must be given: archives hold no device", None)
        self._device = check_is_device(who, "device", device)
        self._root = _unarchived(who, init_for_reading_from_data, self._device, registry)

    def __repr__(self) -> str:
        return described(self, type(self._root).__name__, self._device.name)

    def decode_root_object(self) -> Any:
        """The object that was archived: the same one each time."""
        return self._root

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
        classes: Iterable[type], from_data: Data, device: MTLDevice, *, registry: Registry | None = None
    ) -> Any:
        """The archived object, which must be of one of some classes."""
        who = "MPSKeyedUnarchiver"
        check_is_device(who, "device", device)
        wanted = tuple(classes) if isinstance(classes, Iterable) else (classes,)
        for each in wanted:
            if not isinstance(each, type):
                raise MPSTypeError(who, "classes", "must be classes", repr(each))
        found = MPSKeyedUnarchiver(from_data, device, registry=registry).decode_root_object()
        if not isinstance(found, wanted):
            names = " or ".join(each.__name__ for each in wanted)
            raise MPSTypeError(who, "archive", f"must hold a {names}", type(found).__name__)
        return found

    @classmethod
    def unarchive_object(cls, data: object = None, device: object = None, *, file: object = None) -> Any:
        """Not offered: unavailable, or nil from macOS 10.14 on. Use `unarchived_object_of_class`."""
        raise _retired(f"{cls.__name__}.unarchive_object")

    @classmethod
    def unarchive_top_level_object(cls, data: object = None, device: object = None) -> Any:
        """Not offered: unavailable, or nil from macOS 10.14 on. Use `unarchived_object_of_class`."""
        raise _retired(f"{cls.__name__}.unarchive_top_level_object")


def _retired(form: str) -> MPSTypeError:
    """The error of a form that gives nil in the framework."""
    rule = "is not offered: the framework marks it unavailable or returns nil from macOS 10.14 on"
    remedy = "Use MPSKeyedUnarchiver.unarchived_object_of_class(cls, from_data, device)"
    return MPSTypeError("MPSKeyedUnarchiver", form, rule, None, remedy)


def _unarchived(who: str, data: Data, device: MTLDevice, registry: Registry | None) -> Any:
    """The root object of an archive."""
    what = "archive"
    if isinstance(data, os.PathLike):
        what, data = os.fspath(data), read_archive(data, who)
    if not isinstance(data, bytes | bytearray | memoryview):
        rule = "must be bytes, or the Path of a file"
        raise MPSTypeError(who, "data", rule, type(data).__name__)
    document, arrays = unpack(bytes(data), who, what)
    del data  # as long as the arrays
    entries = document.get("objects")
    if not isinstance(entries, list) or "root" not in document:
        raise MPSFileError(who, what, "must have objects and a root", sorted(map(str, document))[:8])
    reader = Reader(who, arrays, device, _checked(who, registry))
    reader.things(entries)
    return reader.root(document["root"])


def _checked(who: str, registry: Registry | None) -> Registry:
    given: object = {} if registry is None else registry
    if not isinstance(given, Mapping) or not all(callable(make) for make in given.values()):
        rule = "must map the names of classes to functions that make their objects"
        raise MPSTypeError(who, "registry", rule, type(given).__name__)
    return {} if registry is None else registry
