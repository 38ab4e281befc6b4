"""The state of the process after TensorFlow is imported, which `tests/conftest.py` did by `prepare_tensorflow`."""

import gc


def test_garbage_is_collected_again_but_not_looked_for_among_the_imports():
    assert gc.isenabled() and gc.get_freeze_count() > 100_000
