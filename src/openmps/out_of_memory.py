"""Memory that is not there: what libraries raise of it, as the package's own error."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from openmps.errors import MPSError, MPSMemoryError

OF_MEMORY = re.compile(r"out of memory|not enough memory|(cannot|can't) allocate memory|^Error -4 while", re.IGNORECASE)
"""How libraries that have no better error for it put it; the last is zlib's."""


@contextmanager
def memory_for(who: str, argument: str) -> Generator[None]:
    """Raise ``MPSMemoryError`` where there is no memory for what is made within.

    Python and NumPy raise ``MemoryError``, torch a ``RuntimeError`` that only its text tells from others.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_of_memory = isinstance(error, MemoryError) or OF_MEMORY.search(str(error))
        if isinstance(error, MPSError) or not is_of_memory:  # ours are named already
            raise
        remedy = "Drop what is no longer used, or use a smaller batch"
        raise MPSMemoryError(who, argument, "needs more memory than there is", None, remedy) from error
