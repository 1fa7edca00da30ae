"""Slow float64 loops written from the formulas alone: what the operations of openmps are held against.

Nothing here imports openmps or torch. Enumerations are the framework's plain integers.
"""
