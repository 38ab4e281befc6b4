"""The peer that `preproc.outbrain` is compared with makes the same features."""

import numpy as np
import pytest

from dataloading import generate_outbrain
from preproc.outbrain import command as outbrain


def test_pandas_script_gives_the_same_values(tmp_path):
    pytest.importorskip("pandas")
    from benchmarks.outbrain_peer import by_pandas

    assert generate_outbrain.main(["--displays", "3000", "--dst", str(tmp_path / "raw")]) == 0
    assert outbrain.main(["--src", str(tmp_path / "raw"), "--dst", str(tmp_path / "ours")]) == 0
    by_pandas(tmp_path / "raw", tmp_path / "theirs")
    files = sorted(path.relative_to(tmp_path / "ours") for path in (tmp_path / "ours").glob("*/*.bin"))
    assert len(files) == 2 * 16
    for path in files:
        ours, theirs = ((tmp_path / side / path).read_bytes() for side in ("ours", "theirs"))
        if path.name == "numerical.bin":
            np.testing.assert_allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), rtol=0, atol=1e-6)
        else:
            assert ours == theirs, path
