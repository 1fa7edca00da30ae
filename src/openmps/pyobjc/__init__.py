"""PyObjC's modules where there is no PyObjC: scripts written for it on a Mac run here unchanged.

``openmps.pyobjc.install()`` makes ``objc``, ``Foundation``, ``Metal`` and ``MetalPerformanceShaders`` importable, and
``python -m openmps.pyobjc script.py arguments`` runs a script with them. Where PyObjC is installed, it stays.
"""

from openmps.pyobjc.finder import install

__all__ = ["install"]
