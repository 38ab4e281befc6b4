"""The choice of a checkpoint where some are damaged."""

import numpy as np
import pytest

from utils.checkpoint.fallback import sound_checkpoint
from utils.checkpoint.folder import older
from utils.checkpoint.writing import Array, ArrayPart, save
from utils.distributed import World
from utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """Save checkpoints of three steps."""
    for step in (1, 2, 3):
        values = np.full(4, step, np.float32)
        save(tmp_path, step, {"a": Array((4,))}, [ArrayPart("a", lambda start, stop, values=values: values[start:stop])], {}, World())
    return tmp_path


def taken(path):
    """Return the step of the chosen checkpoint, and the messages about the others."""
    said = []
    return sound_checkpoint(path, World(), said.append).step, said


def damage(step):
    (chunk,) = (step / "a/c").rglob("0")
    chunk.write_bytes(b"x" * len(chunk.read_bytes()))


def test_intact_checkpoint_is_taken(folder):
    assert taken(folder) == (3, []) and taken(folder / "step-00000002") == (2, []) and taken(folder / "latest") == (3, [])


def test_damaged_checkpoint_is_replaced_by_the_one_before(folder):
    damage(folder / "step-00000002")
    step, said = taken(folder / "step-00000002")
    assert step == 1 and len(said) == 1 and said[0].endswith(f"--restore_fallback tries {folder / 'step-00000001'} instead")
    damage(folder / "step-00000003")
    step, said = taken(folder)
    assert step == 1 and len(said) == 2
    damage(folder / "step-00000001")
    with pytest.raises(UserError, match=r"step-00000001.*damaged"):
        taken(folder)


def test_empty_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="holds no checkpoint"):
        taken(tmp_path)


def test_older_steps(folder):
    names = [path.name for path in older(folder / "step-00000003")]
    assert names == ["step-00000002", "step-00000001"] and older(folder / "step-00000001") == older(folder / "elsewhere") == []
