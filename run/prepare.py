"""What a run works with, all of it checked before anything expensive is built, and the same on every worker where it must be."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataloading.batches import Split
from dataloading.feature_spec import FeatureSpec
from dataloading.needed_memory import check_memory
from dataloading.sources import read_spec, table_rows
from dataloading.vocabularies import check_vocabularies, vocabulary_files
from model.architectures import architecture_of
from model.compilation import warn_without_effect
from model.embedding.placement import Placement
from model.embedding.plan import share_batches
from model.embedding.table import Feature, Table
from model.native import operations_key
from run.announcement import announcement, too_large_batch
from run.continuing import check_continues, training_invariants
from run.devices import compute_dtype, configured, physical_gpus, set_precision
from run.formed_log import FormedLog, write_args
from run.inherit import changes, inherit
from run.opening import fallback_checkpoint, open_checkpoint, open_splits
from run.placing import place_tables, storage_of
from run.profile_folder import check_profile
from run.restoring import told_choice
from run.same_transforms import check_transforms
from run.tables import grown_widths, list_note, overruled_widths, tables_and_features, with_widths
from training.features import ModelFeatures, check_features, check_names, saved_features, saved_widths
from training.gradient_slices import settled
from training.growth import Growth
from training.position import Position, reason_finished
from utils import launch
from utils.checkpoint.kept_files import KeptFiles
from utils.checkpoint.lock import Lock
from utils.checkpoint.reading import Checkpoint
from utils.checkpoint.save_folder import claim
from utils.checkpoint.trial import try_folder
from utils.cluster.agreement import compare_flags, compare_operations, compare_programs, compare_restored, compare_rows
from utils.config.config import Config
from utils.config.ineffective import warnings
from utils.config.options import TRAIN
from utils.console import Console
from utils.distributed import World, join
from utils.errors import UserError
from utils.logging import RunLog
from utils.memory import available_bytes, device_bytes, limit_note
from utils.metrics.ranking_metric import COUNTS, RankingMetric, figure_names
from utils.pace import expected_step_ms, set_cycle_time


@dataclass(frozen=True)
class Checked:
    """What a worker finds out alone.

    Attributes:
        world: joined.
        console: speaks on the first worker.
        device: "CPU" or "GPU".
        dtype: in which dense layers compute.
        config: with what the checkpoint brings and what the flags left open.
        spec: the dataset's.
        tables: of the model.
        features: the categorical ones, in the model's order.
        splits: what the mode reads, open.
        checkpoint: what is restored; None where training begins anew.
        growth: how its features stand in the model, with `--allow_growth`.
        vocabularies: what the run's own checkpoints keep of the dataset's; known on the first worker.
    """

    world: World
    console: Console
    device: str
    dtype: str
    config: Config
    spec: FeatureSpec
    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    splits: Mapping[str, Split]
    checkpoint: Checkpoint | None
    growth: Growth | None
    vocabularies: Mapping[str, Any]

    @property
    def goes_on(self) -> bool:
        """Whether this run goes on where the checkpoint's was."""
        return self.checkpoint is not None and _continues(self.config)

    @property
    def position(self) -> Position:
        """Where training begins."""
        return Position(**self.checkpoint.manifest["position"]) if self.goes_on else Position()

    @property
    def chosen_by(self) -> str:
        """The split that the model is chosen by; empty where there is none."""
        return next((name for name in ("valid", "test") if name in self.splits), "")

    @property
    def ranked_by(self) -> tuple[RankingMetric, ...]:
        """The metrics by group of the run's evaluations."""
        return self.config.ranking.metrics(self.config.run.mode, self.spec.group is not None)

    @property
    def training_invariants(self) -> dict[str, Any]:
        """What a run must have in common with the one it goes on from."""
        train = self.splits["train"]
        return training_invariants(self.config, train.num_samples, train.fingerprint())


@dataclass(frozen=True)
class Prepared(Checked):
    """What a mode works with: also where the tables go, and the log and the vocabularies that checkpoints keep, open."""

    placement: Placement
    log: RunLog
    vocabulary_files: KeptFiles


@contextmanager
def prepared(config: Config, world: World, program: str) -> Iterator[Prepared | None]:
    """Check everything cheap; release on the way out what is held.

    Args:
        config: as the flags say it.
        world: as `distributed.meet` gave it.
        program: what a warning starts with.

    Yields:
        what the mode works with; None where the run that is to go on is finished, which has been said.

    Raises:
        UserError: the dataset, the checkpoint, a path or the machine cannot do what the options ask.
    """
    world, device = _connected(config, world)
    console = Console(program, world.first, config.names)
    fallback = fallback_checkpoint(config, world, console.warn)
    # Others may have no fault to find: they hear it before they wait for this worker.
    checked = world.together(lambda: _checked(config, fallback, world, device, console), "prepared")
    with ExitStack() as opened:
        for split in checked.splits.values():
            opened.callback(split.close)
        _compare(checked)
        if reason := _reason_finished(checked):
            options = checked.config.training
            path = options.save_checkpoint_path or options.restore_checkpoint_path
            console.say(f"{path}: the run is finished: {reason}; nothing is changed. Give it more with --epochs, for instance")
            yield None
            return
        files = vocabulary_files(checked.config, checked.spec, checked.vocabularies, checked.checkpoint)
        if lock := world.together(lambda: _claimed(checked, files.values()), "claimed"):
            opened.callback(lock.release)
        kept = KeptFiles({name: opened.enter_context(path.open("rb")) for name, path in files.items()})
        _try_folder(checked)
        placement = _place(checked)
        path, units = checked.config.run.log_path if world.first else "", _units(checked)
        log = RunLog(path, checked.config.flat(), append=checked.goes_on, warn=console.warn, units=units)
        opened.callback(log.close)
        if form := architecture_of(checked.config.model).log:
            log = FormedLog(log, form, checked.config.training.epochs * _batches(checked))
        if checked.config.run.args_path and world.first:
            write_args(checked.config)
        samples = {name: split.num_samples for name, split in checked.splits.items()}
        for line in announcement(checked.config, world.size, device, checked.dtype, placement, samples):
            console.say(line)
        yield Prepared(**vars(checked), placement=placement, log=log, vocabulary_files=kept)


def _connected(config: Config, world: World) -> tuple[World, str]:
    """The workers joined and TensorFlow configured: the world and the device."""
    stacks = config.model.bottom_mlp_dims, config.model.top_mlp_dims
    set_cycle_time(expected_step_ms(config.data.batch_size, stacks, launch.size(), config.device.amp), gpu=bool(physical_gpus(config.device)))
    joined = join(world)
    # Before anything that may run a collective: TensorFlow cannot be configured once it has made a tensor.
    device = configured(config.device, joined.local_rank, joined.local_size)
    if not world.meets:  # nobody could be asked before
        compare_programs(joined)
        compare_flags(config.flat(), joined)
    return joined, device


def _checked(given: Config, fallback: Checkpoint | None, world: World, device: str, console: Console) -> Checked:
    """Everything a worker can check alone. `fallback`: the checkpoint, where `--restore_fallback` has read it."""
    warn = console.warn
    check_profile(given.run, world.rank, world.size)
    checkpoint = fallback or open_checkpoint(given, warn)
    config = inherit(given, checkpoint.manifest, _continues(given)) if checkpoint else given
    if checkpoint and given.run.mode != TRAIN and (line := told_choice(given.training.restore_checkpoint_path, checkpoint)):
        console.say(line)
    for line in warnings(config, architecture_of(config.model).optimizers):
        warn(line)
    spec = read_spec(config.data)
    if overruled := overruled_widths(config.model, spec.categorical):
        warn(overruled)
    if checkpoint and (averaged := list_note(config, spec.categorical)):
        warn(averaged)
    if checkpoint and config.training.allow_growth:
        config = grown_widths(config, saved_widths(checkpoint), spec.categorical)
    elif checkpoint:
        check_names(checkpoint, [feature.name for feature in spec.categorical])  # before a list of widths is held against them
    if checkpoint:
        check_transforms(checkpoint, spec, config.training.allow_other_transforms, warn)
    config = with_widths(config, spec.categorical)
    zeros = checkpoint is not None and not config.training.allow_growth  # what is overwritten need not be drawn
    tables, features = tables_and_features(config, spec.categorical, table_rows(config.data, spec), len(spec.numerical), zeros)
    growth = _growth(config, checkpoint, ModelFeatures.of(tables, features, spec.numerical)) if checkpoint else None
    tables = growth.started(tables) if growth else tables
    config = share_batches(config, world.size)
    splits = open_splits(config, spec, warn)
    goes_on = checkpoint is not None and _continues(config)
    if "train" in splits and not goes_on and (line := too_large_batch(config, world.size, splits["train"].num_samples)):
        warn(line)
    if goes_on:
        check_continues(checkpoint, training_invariants(config, splits["train"].num_samples, splits["train"].fingerprint()))
        for line in changes(config, given, checkpoint.manifest):
            console.say(line)
    vocabularies = check_vocabularies(config, spec, checkpoint, warn, goes_on=goes_on) if world.first else {}
    check_memory(config, spec, splits, world.local_size)
    set_precision(config.device)
    config = settled(config, device, world.size, warn)
    _warn_of_device(config, device, warn)
    dtype = compute_dtype(config.device, device)
    return Checked(world, console, device, dtype, config, spec, tables, features, splits, checkpoint, growth, vocabularies)


def _units(run: Checked) -> dict[str, str | None]:
    """Of the metrics by group that the run's evaluations log."""
    return {name: "groups" if name in COUNTS else None for name in figure_names(run.ranked_by)}


def _continues(config: Config) -> bool:
    """Whether a run that restores a checkpoint goes on where that one's was."""
    options = config.training
    return config.run.mode == TRAIN and options.resume != "weights" and not options.allow_growth


def _growth(config: Config, checkpoint: Checkpoint, now: ModelFeatures) -> Growth | None:
    """How the checkpoint's features stand in the model; None where they must be the same, and are."""
    if config.training.allow_growth:
        growth = Growth(checkpoint, saved_features(checkpoint), now)
        if growth.new_tables and config.model.embedding_zeros_initializer:
            raise UserError(
                f"--embedding_zeros_initializer --allow_growth: table {growth.new_tables[0]} is new, and what reads it starts at zero, too, so it "
                "would never learn; drop --embedding_zeros_initializer"
            )
        return growth
    check_features(checkpoint, now)
    return None


def _warn_of_device(config: Config, device: str, warn: Callable[[str], None]) -> None:
    warn_without_effect(config, warn)
    if device == "CPU" and not config.device.cpu:
        for flag in sorted({"tf32", "cpu_offloading_threshold_gb"} & config.given):
            warn(f"--{flag} has no effect: there is no GPU")


def _compare(run: Checked) -> None:
    """What must be the same on all workers."""
    compare_flags(run.config.flat(), run.world)
    compare_restored(run.checkpoint.identity if run.checkpoint else "nothing", run.world)
    compare_rows(" ".join(split.fingerprint() for split in run.splits.values()), run.config.data.dataset_path, run.world)
    compare_operations(operations_key(), run.world, run.console.warn)


def _reason_finished(run: Checked) -> str | None:
    """Why there is nothing to do: the run that this one goes on with has come to its end."""
    if not run.goes_on:
        return None
    return reason_finished(run.config, run.position, _batches(run), run.chosen_by)


def _batches(run: Checked) -> int:
    """Steps of an epoch; 0 where nothing is trained."""
    if "train" not in run.splits:
        return 0
    return run.config.training.steps_per_epoch or math.ceil(run.splits["train"].num_samples / run.config.data.batch_size)


def _claimed(run: Checked, files: Iterable[Path]) -> Lock | None:
    """The lock of the folder for checkpoints, on the first worker; None where it holds none."""
    options = run.config.training
    if run.config.run.mode != TRAIN or not options.save_checkpoint_path or not run.world.first:
        return None
    storage = storage_of(run.config)
    size = sum(storage.bytes(table.rows, table.dim) for table in run.tables) + sum(path.stat().st_size for path in files)
    restored = run.checkpoint.folder if run.goes_on else None
    return claim(Path(options.save_checkpoint_path), restored, options.overwrite_checkpoints, size)


def _try_folder(run: Checked) -> None:
    path = run.config.training.save_checkpoint_path
    if run.config.run.mode == TRAIN and path:
        try_folder(Path(path), [f"tables/{table.name}/accumulator" for table in run.tables], run.world)


def _place(run: Checked) -> Placement:
    """Where the tables go, the same on every worker; raises UserError where they do not fit."""
    host = available_bytes() // run.world.local_size
    device = device_bytes(run.world.local_rank) if run.device == "GPU" else host
    device, host = (min(values) for values in zip(*run.world.everyone((device, host), "memory"), strict=True))
    try:
        return place_tables(run.config, run.tables, run.world.size, device, host if run.device == "GPU" else 0, run.features)
    except UserError as error:
        error.args = (f"{error}{limit_note()}",)
        raise
