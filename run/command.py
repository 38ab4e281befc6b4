"""Execution of a command line: the part that dlrm.py and its sibling programs share."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

from run.affinity import set_affinity
from utils import launch
from utils.cluster import launcher
from utils.cluster.agreement import compare_flags, compare_programs
from utils.commands import as_the_signal_ends
from utils.config.config import Config
from utils.config.options import EXPORT, PLAN, PREDICT
from utils.dialects.command_line import Translation, parse
from utils.distributed import World, meet
from utils.errors import UserError
from utils.flag_names import spoken
from utils.signals import EndedBySignals


def do(
    arguments: Sequence[str],
    program: str,
    description: str,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    translate: Translation | None = None,
) -> object:
    """Execute a command line and return the mode's result. Every worker calls this.

    Args:
        arguments: words of the command line.
        program: name of the program, "dlrm.py" for instance.
        description: opening text of `--help`.
        defaults: the program's own defaults of flags.
        translate: see `utils.config.parse`.

    Raises:
        UserError: an error that the user can correct.
    """
    world = meet()
    if world.meets:
        compare_programs(world)
    config = world.together(lambda: parse(arguments, description, program, defaults, translate), "parsed")
    try:
        return _execute(config, world, program)
    except UserError as error:
        error.args = (spoken(str(error), config.names),)
        raise


def _execute(config: Config, world: World, program: str) -> object:
    if config.run.mode == PLAN:
        from run.plan import show_plan

        return show_plan(config, program)
    launcher.watch(program)
    if world.meets:
        compare_flags(config.flat(), world)
    set_affinity(config.device.affinity, not config.device.cpu, launch.local_rank(), launch.local_size())
    from utils.runtime import prepare_tensorflow

    prepare_tensorflow()
    # The output of these two modes must not be left half-written. With several workers the launcher decides how they end.
    ending = EndedBySignals(program) if config.run.mode in (EXPORT, PREDICT) and world.size == 1 else nullcontext()
    with ending:
        return as_the_signal_ends(lambda: _in_mode(config, world, program))


def _in_mode(config: Config, world: World, program: str) -> object:
    if config.run.mode == EXPORT:
        from run.export import export

        return export(config, program)
    from run.modes import MODES
    from run.prepare import prepared

    with prepared(config, world, program) as run:
        return MODES[config.run.mode](run) if run is not None else None
