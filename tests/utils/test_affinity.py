"""`--affinity`: the processors that a worker may use, on machines as the kernel describes them; `taskset` confirms them for a process."""

import os

import pytest

from run.affinity import DISABLED, Machine, processors, this_machine
from tests.helpers.commands import run
from utils.config.device import AFFINITIES

# Two sockets of four cores, each of two hyper-threads: processor c and c + 8 are core c's.
TWO = Machine(tuple(tuple((core, core + 8) for core in range(first, first + 4)) for first in (0, 4)))


def chosen(affinity, workers, machine=TWO):
    return [sorted(processors(affinity, machine, rank, workers)) for rank in range(workers)]


def test_each_setting_on_two_sockets():
    first, second = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    assert chosen("socket", 4) == [first, first, second, second]
    assert chosen("single", 4) == [[0], [0], [4], [4]]
    assert chosen("single_unique", 4) == [[0], [1], [4], [5]]
    assert chosen("socket_unique_interleaved", 4) == [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
    assert chosen("socket_unique_continuous", 4) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]


def test_workers_are_on_the_socket_near_their_gpu():
    machine = Machine(TWO.sockets, (frozenset(range(4, 8)), frozenset(range(4))))
    assert chosen("single_unique", 2, machine) == [[4], [0]]
    assert chosen("single_unique", 4, machine) == [[4], [0], [5], [1]]  # two workers a GPU


@pytest.mark.parametrize("affinity", [one for one in AFFINITIES if one != DISABLED])
@pytest.mark.parametrize("workers", [1, 3, 8, 11])
def test_every_worker_gets_processors_and_cores_are_shared_only_if_too_few(affinity, workers):
    found = chosen(affinity, workers)
    assert all(found) and {one for some in found for one in some} <= set(range(16))
    if "unique" in affinity and workers <= 8:
        assert len({one for some in found for one in some}) == sum(map(len, found))


def test_machine_is_read_from_sysfs(tmp_path):
    for one in range(4):
        folder = tmp_path / f"devices/system/cpu/cpu{one}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{one % 2},{one % 2 + 2}\n")
        (folder / "physical_package_id").write_text(f"{one % 2}\n")
    for address, vendor, kind in (("0000:01:00.0", "0x10de", "0x030200"), ("0000:02:00.0", "0x8086", "0x020000")):
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")
        (folder / "local_cpulist").write_text("1,3\n")
    everything = frozenset(range(4))
    assert this_machine(everything, True, tmp_path) == Machine((((0, 2),), ((1, 3),)), (frozenset({1, 3}),))
    assert this_machine(frozenset({0, 1, 2}), False, tmp_path) == Machine((((0, 2),), ((1,),)))
    assert this_machine(frozenset({5}), True, tmp_path / "nothing") == Machine((((5,),),))


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_taskset_confirms_the_affinity(affinity):
    code = (
        "import os, sys; from run.affinity import set_affinity; set_affinity(sys.argv[1], False, 0, 2);"
        "os.execvp('taskset', ['taskset', '-cp', str(os.getpid())])"
    )
    result = run("-c", code, affinity)
    allowed = frozenset(os.sched_getaffinity(0))
    expected = allowed if affinity == DISABLED else processors(affinity, this_machine(allowed, False), 0, 2)
    shown = result.stdout.rsplit(":", 1)[1].strip()
    found = {one for part in shown.split(",") for one in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)}
    assert found == expected
