"""Tests of models in forked processes, and of training in a thread: each works, or fails at once with an error that says what to do; none hangs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars
import pytest
from runs import ROOT, TRAIN

import dlrm

LIMIT_S = 500  # for a whole script on a busy machine; an alarm of its own ends a child that hangs before that
SPAWN = '"spawn" or "forkserver"'
SCRIPT = """
import json, os, signal, sys
import numpy as np
import dlrm
from utils.errors import UserError

path, samples = sys.argv[1], {name: np.array(values) for name, values in json.loads(open(sys.argv[2]).read()).items()}
few = {name: values[:5] for name, values in samples.items()}


def in_child(call):
    # what a forked child makes of a call: "hangs", the scores' bytes in hexadecimal, or the error
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(100)
        try:
            os.write(writes, call().tobytes().hex().encode())
        except (UserError, ValueError) as error:
            os.write(writes, str(error).encode())
        os._exit(0)
    os.close(writes)
    text = b""
    while part := os.read(reads, 65536):
        text += part
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "hangs" if code == -signal.SIGALRM else text.decode()


"""


def forked(tmp_path, path, samples, code):
    """Run a script in a process that has scored, and return the JSON of its last line."""
    (tmp_path / "samples.json").write_text(json.dumps({name: np.asarray(values).tolist() for name, values in samples.items()}))
    (tmp_path / "script.py").write_text(SCRIPT + code)
    with subprocess.Popen(
        [sys.executable, tmp_path / "script.py", str(path), tmp_path / "samples.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the processes it forked
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def samples(dataset):
    draw = np.random.default_rng(3)
    columns = {f"num_{place}": draw.random(600) for place in range(3)}
    return columns | {f"cat_{place}": draw.integers(0, rows, 600) for place, rows in enumerate((50, 300, 7))}


def test_forked_children_score_or_raise_an_error(tmp_path, trained, samples):
    found = forked(
        tmp_path,
        trained[0],
        samples,
        """
fresh = in_child(lambda: dlrm.load(path, mmap=True).score(samples))  # nothing has begun yet
mapped = dlrm.load(path, mmap=True)
expected = mapped.score(few)
result = {"fresh": fresh, "few": in_child(lambda: mapped.score(few)), "expected": expected.tobytes().hex()}
whole = dlrm.load(path)
scores = whole.score(samples)
result["scores"] = scores.tobytes().hex()
result["whole"] = in_child(lambda: whole.score(samples))
result["many"] = in_child(lambda: mapped.score(samples))
result["few later"] = in_child(lambda: mapped.score(few))
result["loaded"] = in_child(lambda: dlrm.load(path).score(few))
result["trained"] = in_child(lambda: dlrm.train(dataset_type="synthetic", cpu=True, log_path="", batch_size=64))
print(json.dumps(result))
""",
    )
    assert found["fresh"] == found["scores"]
    assert found["few"] == found["few later"] == found["expected"]
    for name in ("whole", "many"):
        assert "forked after TensorFlow had started its threads" in found[name] and SPAWN in found[name], (name, found[name])
    for name in ("loaded", "trained"):
        assert "this process was forked after Tensor" in found[name] and SPAWN in found[name], (name, found[name])


def test_a_pool_of_forked_processes(tmp_path, trained, samples):
    """In a `multiprocessing` pool with "fork", each process scores with threads of its own, or sends the error to its parent."""
    found = forked(
        tmp_path,
        trained[0],
        samples,
        """
import multiprocessing
mapped, whole = dlrm.load(path, mmap=True), None
expected = mapped.score(few)


def score(which):
    try:
        return (mapped if which == "mapped" else whole).score(few if which == "mapped" else samples).tobytes().hex()
    except UserError as error:
        return str(error)


def by_pool(which):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map_async(score, [which] * 4).get(150)


result = {"expected": expected.tobytes().hex(), "mapped": by_pool("mapped")}
whole = dlrm.load(path)
whole.score(samples)
result["whole"] = by_pool("whole")
print(json.dumps(result))
""",
    )
    assert found["mapped"] == [found["expected"]] * 4
    assert len(found["whole"]) == 4 and all(SPAWN in text for text in found["whole"])


def test_fork_while_another_thread_holds_the_models_lock(tmp_path, trained, samples):
    """A child scores, or fails with an error, where the model's lock is held by a thread that exists only in the parent."""
    found = forked(
        tmp_path,
        trained[0],
        samples,
        """
import threading
mapped = dlrm.load(path, mmap=True)
with mapped._lock:
    held = in_child(lambda: mapped.score(samples))
print(json.dumps({"held": held, "expected": mapped.score(samples).tobytes().hex()}))
""",
    )
    assert found["held"] == found["expected"] or SPAWN in found["held"]


def test_polars_used_before_a_fork(tmp_path, trained, samples):
    found = forked(
        tmp_path,
        trained[0],
        samples,
        """
import polars
frame = polars.DataFrame(few)
mapped = dlrm.load(path, mmap=True)
imported = in_child(lambda: mapped.score(polars.DataFrame(few).lazy()))
expected = mapped.score(frame.lazy().filter(polars.col("cat_0") >= 0))
result = {"imported": imported, "expected": expected.tobytes().hex(), "frame": in_child(lambda: mapped.score(frame))}
result["lazy"] = in_child(lambda: mapped.score(frame.lazy()))
print(json.dumps(result))
""",
    )
    assert found["imported"] == found["frame"] == found["expected"]
    assert "forked after Polars had started its threads" in found["lazy"] and SPAWN in found["lazy"]


def test_a_lazy_frame_is_collected(trained, samples):
    model = dlrm.load(trained[0], mmap=True)
    frame = polars.DataFrame(samples)
    np.testing.assert_array_equal(model.score(frame.lazy()), model.score(samples))
    with pytest.raises(ValueError, match="feature cat_1: is missing"):
        model.score(frame.lazy().drop("cat_1"))
    with pytest.raises(ValueError, match=r"samples: the LazyFrame cannot be collected: .*nothing"):
        model.score(frame.lazy().select("nothing"))
    with pytest.raises(ValueError, match="samples: the LazyFrame cannot be collected: "):
        model.score(polars.scan_csv("/nowhere/at-all.csv"))


def test_training_in_a_thread_matches_the_main_thread(tmp_path, dataset):
    """Training in a thread gives the figures of training in the main thread, and leaves the signal handlers as they were."""
    script = tmp_path / "script.py"
    script.write_text("""
import json, signal, sys, threading
import dlrm

flags, found = json.loads(sys.argv[1]), {}
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
thread = threading.Thread(target=lambda: found.update(dlrm.train(**flags).figures))
thread.start()
thread.join()
again = dlrm.train(**flags).figures
assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
print(json.dumps([found, again]))
""")
    flags = {"dataset_path": str(dataset), "cpu": True, "max_steps": 5, "log_path": "", "batch_size": 256, "embedding_dim": 8}
    flags |= {"bottom_mlp_dims": [16, 8], "top_mlp_dims": [16, 1], "keep_best_checkpoint": True, "save_checkpoint_path": str(tmp_path / "c")}
    flags |= {"overwrite_checkpoints": True}
    words = [sys.executable, script, json.dumps(flags)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0 and "Exception" not in result.stderr, result.stderr
    in_thread, in_main = json.loads(result.stdout.splitlines()[-1])
    assert in_thread["steps"] == 5
    assert {name: in_thread[name] for name in ("auc", "validation_loss", "train_loss")} == {
        name: in_main[name] for name in ("auc", "validation_loss", "train_loss")
    }


def test_parameter_count_excludes_optimizer_slots(trained):
    """The count of parameters leaves out the optimizers' slots; Adam has two for every weight of a table."""
    dims = [[3, 16], [16, 8], [8 + 6, 16], [16, 1]]
    weights = sum(rows * 8 for rows in (50, 300, 7)) + sum(inputs * outputs + outputs for inputs, outputs in dims)
    assert "--optimizer" in TRAIN and f": {weights:,} parameters\n" in repr(dlrm.load(trained[0], mmap=True))


def test_several_models_give_no_retracing_warning(tmp_path, trained, samples):
    script = Path(tmp_path / "script.py")
    script.write_text("""
import json, sys
import numpy as np
import dlrm

samples = {name: np.array(values) for name, values in json.loads(open(sys.argv[2]).read()).items()}
for mmap in (False, True):
    for model in [dlrm.load(sys.argv[1], mmap=mmap) for _ in range(8)]:
        model.score(samples)
""")
    (tmp_path / "samples.json").write_text(json.dumps({name: values.tolist() for name, values in samples.items()}))
    words = [sys.executable, script, str(trained[0]), tmp_path / "samples.json"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert result.returncode == 0 and result.stderr == "", result.stderr
