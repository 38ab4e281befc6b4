"""The state of the process after TensorFlow is imported, which `tests/conftest.py` did by `prepare_tensorflow`."""

import gc


def test_garbage_collection_is_on_and_excludes_imported_objects():
    assert gc.isenabled() and gc.get_freeze_count() > 100_000
