"""``openmps``, and ``python -m openmps``, are the command line."""

import os
import sys

_INTERRUPTED = 130


def _interrupt(*_: object) -> None:
    """Ctrl-C: an interrupt, but the end of the process until the engine is imported.

    Nothing is half done before. Where an interrupt comes out of its initialization in C++, the engine aborts the
    process, and where one comes out of ``exec``, as other packages have it, Python ends with another status.
    """
    engine = sys.modules.get("torch")
    if engine is None or getattr(engine.__spec__, "_initializing", False):
        os._exit(_INTERRUPTED)
    raise KeyboardInterrupt


def run() -> int:
    """Run the process's own command line and return the exit status: 130 after Ctrl-C, while it is imported, too."""
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored
            signal.signal(signal.SIGINT, _interrupt)
        from openmps.cli import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED


def _search_no_modules_here() -> None:
    """Undo what `python -m` does first: what lies in the current folder is data, even if it is called numpy.py."""
    try:
        here = os.getcwd()
    except OSError:  # the folder is gone
        return
    if not sys.flags.safe_path and sys.path and sys.path[0] == here:
        del sys.path[0]


if __name__ == "__main__":
    _search_no_modules_here()
    sys.exit(run())
