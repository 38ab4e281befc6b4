"""Child processes of tests react to signals however the suite was started, and end with their test."""

import signal
import sys

import pytest

from tests.children import child

READ = "import re; print(int(re.search(r'SigIgn:\\s*(\\w+)', open('/proc/self/status').read())[1], 16), flush=True); input()"


@pytest.mark.parametrize(("here", "ignored"), [(signal.SIG_IGN, ()), (signal.SIG_DFL, ()), (signal.SIG_DFL, (signal.SIGHUP,))])
def test_children_ignore_only_the_given_signals(here, ignored):
    numbers = (signal.SIGHUP, signal.SIGTERM) if ignored else (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, here) for number in numbers}
    try:
        with child([sys.executable, "-c", READ], ignored, stdin=-1) as process:
            mask = int(process.stdout.readline())
            assert [bool(mask >> number - 1 & 1) for number in numbers] == [number in ignored for number in numbers]
            assert all(signal.getsignal(number) == here for number in numbers)
            process.stdin.close()
        assert process.poll() is not None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
