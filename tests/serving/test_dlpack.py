"""Capsules are read by another reader of DLPack, and their memory is kept exactly as long as it is wanted."""

import gc

import numpy as np

from serving import dlpack


class Held:
    """What NumPy's reader asks."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **kwargs):
        return self._capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_a_capsule_holds_the_array_until_its_reader_has_done_with_it():
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    for given in (values, values[:, ::2], values[:1, :1], values[:0]):
        before = len(dlpack._kept)
        expected = given.copy()
        read = np.from_dlpack(Held(dlpack.capsule(given)))
        assert len(dlpack._kept) == before + 1
        np.testing.assert_array_equal(read, expected)
        assert read.dtype == np.float32 and read.shape == expected.shape
        del read
        gc.collect()
        assert len(dlpack._kept) == before
