"""What openmps answers to one list of cases, held against what Macs have answered.

`cases.json` is the list, which programs in other languages read, too: tools/conformance_cases.py writes it, and
docs/conformance.md says what its words mean. `goldens` holds answers of machines. `python -m openmps.conformance FOLDER`
records openmps' own answers in the same form as recorder/record.swift does a Mac's.
"""
