"""The C++ operations, for tests that need them."""

import os

import pytest

from model.native import NativeOperations, native_operations


def built_operations() -> NativeOperations:
    """Return the C++ operations. Skip the test if DLRM_NATIVE_OPS=0 switches them off; fail it if they are not built."""
    if os.environ.get("DLRM_NATIVE_OPS") == "0":
        pytest.skip("DLRM_NATIVE_OPS=0")
    operations = native_operations()
    assert operations is not None, "the C++ operations are not built for this machine: run .venv/bin/python ops/build"
    return operations
