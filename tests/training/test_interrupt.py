"""Ctrl-C that waits for a good moment."""

from __future__ import annotations

import signal
import threading

import pytest

from openmps.training.interrupt import DeferredInterrupt


def test_it_is_raised_by_the_next_check_and_the_handler_comes_back():
    handler = signal.getsignal(signal.SIGINT)
    with DeferredInterrupt() as interrupt:
        interrupt.check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_one_is_raised_at_once():
    with DeferredInterrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_process_that_ignores_the_signal_goes_on_ignoring_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with DeferredInterrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            interrupt.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_sets_no_handler():
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter():
        with DeferredInterrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
