"""ZIP archives whose members are arrays: members are read one at a time, and take no more memory than they may."""

from __future__ import annotations

import codecs
import io
import zipfile
import zlib

from openmps.errors import MPSFileError

MOST_UNPACKED = 16
"""How many times as long as the file all members together may be."""
_MOST_MEMBERS = 20_000
_DIRECTORY_ENTRY = 64
"""Bytes of a member in the list, with a short name."""
codecs.lookup("cp437")  # which zipfile looks up, and so imports, when a name is not UTF-8
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Others, which nobody writes arrays with, take as much memory as a file asks for."""
_ENCRYPTED = 1
_END = b"PK\5\6"
_LARGE_END, _IS_LARGE = b"PK\6\6", 0xFFFFFFFF


class Zip:
    """The members of an archive in memory, of which nothing is ever written to a folder.

    Raises ``MPSFileError`` where it is damaged, encrypted, has a name twice, or would unpack to more than
    `MOST_UNPACKED` times its length.
    """

    def __init__(self, data: bytes, who: str, path: str) -> None:
        self._data, self._who, self._path = data, who, path
        self._check_directory()
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            members = self._archive.infolist()
        except (zipfile.BadZipFile, ValueError, OverflowError, NotImplementedError, RuntimeError) as error:
            raise self._damaged(error) from error
        self.names = {member.filename: member for member in members}
        if len(self.names) != len(members):
            raise self._damaged("a name that is there twice")
        if any(member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED for member in members):
            raise self._damaged("a member that is encrypted, or packed in another way than deflated")
        unpacked = sum(member.file_size for member in members)
        if unpacked > MOST_UNPACKED * len(data):
            rule = f"must unpack to at most {MOST_UNPACKED} times its {len(data):,} bytes"
            raise MPSFileError(who, path, rule, f"{unpacked:,} bytes", "Write it again, not compressed.")
        if sum(member.compress_size for member in members) > len(data):
            raise self._damaged("members that are longer than the file")

    def _check_directory(self) -> None:
        """Refuse lists of members that take much more memory than the archive."""
        place, large = self._data.rfind(_END), self._data.rfind(_LARGE_END)
        if place < 0:
            raise self._damaged("no list of its members")
        length = int.from_bytes(self._data[place + 12 : place + 16], "little")
        if length == _IS_LARGE and large >= 0:
            length = int.from_bytes(self._data[large + 40 : large + 48], "little")
        if length > _MOST_MEMBERS * _DIRECTORY_ENTRY:
            raise self._damaged(f"a list of its members of {length:,} bytes")

    def read(self, name: str) -> memoryview:
        """The bytes of a member, whose checksum fits."""
        member = self.names[name]
        try:
            with self._archive.open(member) as file:
                data = file.read(member.file_size + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
            raise self._damaged(error) from error
        if len(data) != member.file_size:
            raise self._damaged(f"{len(data):,} bytes in {name[:80]!r}, not {member.file_size:,}")
        return memoryview(data)

    def _damaged(self, got: object) -> MPSFileError:
        return MPSFileError(self._who, self._path, "must be a whole ZIP archive", got)
