"""What a case may take."""

MOST_SECONDS = 5.0
"""A case that takes longer fails, unless ``--seconds`` says otherwise."""
HANGING = 4
"""One that takes so many times as long is ended."""
TRACED_ALLOWANCE = 768 << 10
"""Bytes of Python's and NumPy's memory beyond twice what the honest file takes: errors, frames of recursion."""
RESIDENT_ALLOWANCE = 24 << 20
"""Bytes of the whole process beyond twice that: allocators keep and round, and Python's recursion takes stack."""
LONGEST_MESSAGE = 4000
"""Characters of an error."""
