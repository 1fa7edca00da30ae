"""What openmps answers to one list of cases, held against what Macs have answered.

`cases.json` is the list, which programs in other languages read, too: tools/conformance_cases.py writes it, and
docs/conformance.md says what its words mean. `goldens` holds recordings of machines, which recorder/record.swift writes
on a Mac and `openmps selftest --record` here, in one form.
"""
