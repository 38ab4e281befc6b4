"""Preparation of a run: everything is checked before anything expensive is built, and compared among workers where it must be equal."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dataloading.batches import Split
from dataloading.feature_spec import FeatureSpec
from dataloading.needed_memory import check_memory
from dataloading.sources import read_spec, table_rows
from dataloading.training_only import served_values
from dataloading.vocabularies import check_vocabularies, vocabulary_files
from model.architectures import architecture_of
from model.compilation import warn_without_effect
from model.embedding.placement import Placement
from model.embedding.plan import share_batches
from model.embedding.table import Feature, Table
from model.native import operations_key
from run.announcement import announcement, details, too_large_batch
from run.continuing import check_continues, training_invariants
from run.devices import compute_dtype, configured, physical_gpus, set_precision
from run.expected_rows import known_laws
from run.formed_log import FormedLog, form_of, write_args
from run.inherit import changes, inherit
from run.negatives import with_negatives
from run.opening import data_notes, fallback_checkpoint, open_checkpoint, open_splits
from run.profile_folder import check_profile, tensorboard
from run.restoring import choice_note
from run.run_line import of_machine, of_placement, run_id, saved_id
from run.same_transforms import check_transforms
from run.stored_synthetic import reading_stored, store_synthetic
from run.table_storage import check_lazy, checkpoint_bytes, place_stored, stored_tables, without_lazy
from run.tables import grown_widths, list_note, overruled_widths, tables_and_features, with_widths
from training.features import ModelFeatures, check_features, check_names, saved_features, saved_widths
from training.gradient_slices import with_gradient_slices
from training.growth import Growth
from training.position import Position, reason_finished, steps_in_all
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
from utils.errors import UserError, message_of
from utils.logging import RunLog
from utils.metrics.ranking_metric import COUNTS, RankingMetric, figure_names
from utils.pace import expected_step_ms, set_cycle_time
from utils.signals import LastWords, Stopped


@dataclass(frozen=True)
class Checked:
    """The results of the checks that a worker makes alone.

    Attributes:
        world: the joined workers.
        console: console that writes on the first worker only.
        device: "CPU" or "GPU".
        dtype: dtype in which dense layers compute.
        config: configuration with inherited options, and with values for the options that the flags leave open.
        spec: feature specification of the dataset.
        tables: tables of the model.
        features: categorical features, in the model's order.
        splits: the splits that the mode reads, open.
        checkpoint: checkpoint to restore; None where training starts anew.
        growth: mapping of the checkpoint's features to the model's, with `--allow_growth`.
        vocabularies: records of the dataset's vocabularies that the run's checkpoints keep; known on the first worker.
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
        """True where this run resumes the checkpoint's run."""
        return self.checkpoint is not None and _continues(self.config)

    @property
    def position(self) -> Position:
        """The position at which training begins."""
        return Position.saved(self.checkpoint.manifest["position"]) if self.goes_on else Position()

    @property
    def chosen_by(self) -> str:
        """The split that selects the best weights; empty where there is none."""
        return next((name for name in ("valid", "test") if name in self.splits), "")

    @property
    def ranked_by(self) -> tuple[RankingMetric, ...]:
        """The group metrics that the run's evaluations compute."""
        return self.config.ranking.metrics(self.config.run.mode, self.spec.group is not None)

    @property
    def training_invariants(self) -> dict[str, Any]:
        """The values that a run must share with the run it resumes."""
        train = self.splits["train"]
        return training_invariants(self.config, train.num_samples, train.fingerprint(), self.spec.negative_rate)


@dataclass(frozen=True)
class Prepared(Checked):
    """All that a mode works with: the results of the checks, the placement of the tables, and the open log and vocabulary files.

    Attributes:
        table_memory: bytes for the rows of the lazy tables on one worker, with their optimizer slots.
        in_log: `path` and `run`, the log's file and the run's id, as checkpoints keep them; known on the first worker.
        progress: the position of the run while it trains.
    """

    placement: Placement
    table_memory: float
    log: RunLog
    vocabulary_files: KeptFiles
    in_log: Mapping[str, str | None]
    progress: Position


@contextmanager
def prepared(config: Config, world: World, program: str) -> Iterator[Prepared | None]:
    """Run all cheap checks; close resources on exit.

    Args:
        config: configuration from the flags.
        world: world that `distributed.meet` returned.
        program: prefix of warnings.

    Yields:
        What the mode works with; None, with a message, where the run to resume is finished.

    Raises:
        UserError: the dataset, the checkpoint, a path or the machine does not permit what the options ask.
    """
    world, device = _connected(config, world)
    console = Console(program, world.first, config.names)
    fallback = fallback_checkpoint(config, world, console.warn)
    store_synthetic(config, world, console)
    # An error may occur on this worker only: `together` raises it on the others, too, before they wait for this worker.
    checked = world.together(lambda: _checked(config, fallback, world, device, console), "prepared")
    with ExitStack() as opened:
        for split in checked.splits.values():
            opened.callback(split.close)
        _compare(checked)
        if reason := _reason_finished(checked):
            options = checked.config.training
            path = options.save_checkpoint_path or options.restore_checkpoint_path
            console.say(f"{path}: the run is finished: {reason}; nothing is changed. To train longer, increase --epochs, for instance")
            yield None
            return
        laws = known_laws(checked.config.data, checked.spec)
        tables, placement, memory = place_stored(checked.config, checked.tables, checked.features, world, device, laws, console.warn)
        checked = replace(checked, tables=tables)
        files = vocabulary_files(checked.config, checked.spec, checked.vocabularies, checked.checkpoint)
        if lock := world.together(lambda: _claimed(checked, files.values()), "claimed"):
            opened.callback(lock.release)
        kept = KeptFiles({name: opened.enter_context(path.open("rb")) for name, path in files.items()})
        _try_folder(checked)
        resumed = checked.checkpoint if checked.goes_on else None
        path, resumes = checked.config.run.log_path if world.first else "", saved_id(resumed) if resumed else None
        identity, step = (run_id(resumed) if world.first else None), checked.position.step if resumed else None
        observers = world.together(lambda: tensorboard(checked.config.run, identity, step, console.say) if world.first else [], "tensorboard")
        for observer in observers:
            opened.callback(observer.close)
        units = _units(checked)
        log = world.together(lambda: RunLog(path, checked.config.flat(), resumes, console.warn, units=units, observers=observers), "logged")
        opened.callback(log.close)
        in_log = {"path": log.path and str(log.path), "run": identity}
        if form := form_of(checked.config):
            log = FormedLog(log, form, _published_steps(checked))
        if checked.config.run.args_path and world.first:
            write_args(checked.config)
        samples = {name: split.num_samples for name, split in checked.splits.items()}
        for line in announcement(checked.config, device, checked.dtype, placement, samples, memory):
            console.say(line)
        if world.first:
            log.log("RUN", about := _described(checked, placement, in_log["run"], program))
            for line in details(about) if checked.config.run.verbose else ():
                console.say(line)
        placed = {"placement": placement, "table_memory": memory}
        run = Prepared(**vars(checked), **placed, log=log, vocabulary_files=kept, in_log=in_log, progress=checked.position)
        with _faults_logged(run):
            yield run


@contextmanager
def _faults_logged(run: Prepared) -> Iterator[None]:
    """Log the error or the signal that ends a run, with its position where it trains."""
    train, saves = run.config.run.mode == TRAIN, bool(run.config.training.save_checkpoint_path)

    def log(message: str, stopped: bool = False) -> None:
        where = {"epoch": run.progress.epoch, "step": run.progress.step} if train else {}
        run.log.log("FAULT", {**where, "message": message, "stopped": stopped})

    try:
        with LastWords(lambda number: log(f"ended by {number.name}")) if run.world.size == 1 else nullcontext():
            yield
    except BaseException as error:
        log(message_of(error), isinstance(error, Stopped) and saves)
        raise


def _connected(config: Config, world: World) -> tuple[World, str]:
    """Join the workers and configure TensorFlow; return the world and the device."""
    stacks = config.model.bottom_mlp_dims, config.model.top_mlp_dims
    step_ms = expected_step_ms(config.data.batch_size, stacks, launch.size(), config.device.amp)
    set_cycle_time(step_ms, gpu=bool(physical_gpus(config.device)), norms=len(architecture_of(config.model).normalised(config.model, 1)))
    joined = join(world)
    # Configure before anything that may run a collective: TensorFlow cannot be configured after the first tensor.
    device = configured(config.device, joined.local_rank, joined.local_size)
    if not world.meets:  # the workers could not be compared before they joined
        compare_programs(joined)
        compare_flags(config.flat(), joined)
    return joined, device


def _checked(given: Config, fallback: Checkpoint | None, world: World, device: str, console: Console) -> Checked:
    """Run the checks that a worker can make alone. `fallback` is the checkpoint that `--restore_fallback` has verified."""
    warn = console.warn
    check_profile(given.run, world.rank, world.size)
    checkpoint = fallback or open_checkpoint(given, warn)
    config = inherit(given, checkpoint.manifest, _continues(given)) if checkpoint else given
    if checkpoint and given.run.mode != TRAIN and (line := choice_note(given.training.restore_checkpoint_path, checkpoint)):
        console.say(line)
    for line in warnings(config, architecture_of(config.model).optimizers(config.optimizer)):
        warn(line)
    config = reading_stored(config)
    spec = read_spec(config.data, config.features, checkpoint is None and "embedding_dim" not in config.given)
    if overruled := overruled_widths(config.model, spec.categorical):
        warn(overruled)
    if checkpoint and (averaged := list_note(config, spec.categorical)):
        warn(averaged)
    if checkpoint and config.training.allow_growth:
        config = grown_widths(config, saved_widths(checkpoint), spec.categorical)
    elif checkpoint:
        check_names(checkpoint, [feature.name for feature in spec.categorical])  # before a list of widths is compared with them
    if checkpoint:
        check_transforms(checkpoint, spec, config.training.allow_other_transforms, warn)
    goes_on = checkpoint is not None and _continues(config)
    config = with_negatives(with_widths(config, spec.categorical), spec, goes_on, console.say, warn)
    tables, features = tables_and_features(config, spec.categorical, table_rows(config.data, spec), len(spec.numerical))
    tables = stored_tables(config, tables, None if config.training.allow_growth else checkpoint)
    check_lazy(config, tables, device)
    if useless := without_lazy(config, tables):
        warn(useless)
    growth = _growth(config, checkpoint, ModelFeatures.of(tables, features, spec.numerical, served=served_values(spec))) if checkpoint else None
    tables = growth.started(tables) if growth else tables
    config = share_batches(config, world.size)
    splits = open_splits(config, spec, warn)
    for line in data_notes(config, spec, splits.values()) if world.first else ():
        warn(line)
    if config.run.mode == TRAIN and not goes_on and (line := too_large_batch(config, world.size, splits["train"].num_samples)):
        warn(line)
    if goes_on:
        train = splits["train"]
        check_continues(checkpoint, training_invariants(config, train.num_samples, train.fingerprint(), spec.negative_rate))
        for line in changes(config, given, checkpoint.manifest):
            console.say(line)
    vocabularies = check_vocabularies(config, spec, checkpoint, warn, goes_on=goes_on) if world.first else {}
    check_memory(config, spec, splits, world.local_size)
    set_precision(config.device)
    config = with_gradient_slices(config, device, world.size, warn)
    _warn_of_device(config, world.size, device, warn)
    dtype = compute_dtype(config.device, device)
    return Checked(world, console, device, dtype, config, spec, tables, features, splits, checkpoint, growth, vocabularies)


def _units(run: Checked) -> dict[str, str | None]:
    """Return the units of the group metrics that the run's evaluations log, and of the keys of its model."""
    form = form_of(run.config)
    return dict(form.units if form else {}) | {name: "groups" if name in COUNTS else None for name in figure_names(run.ranked_by)}


def _continues(config: Config) -> bool:
    """Return whether a run that restores a checkpoint resumes the checkpoint's run."""
    options = config.training
    return config.run.mode == TRAIN and options.resume != "weights" and not options.allow_growth


def _growth(config: Config, checkpoint: Checkpoint, now: ModelFeatures) -> Growth | None:
    """Return the growth of the checkpoint's features into the model's. Without `--allow_growth` check that they are equal and return None."""
    if config.training.allow_growth:
        growth = Growth(checkpoint, saved_features(checkpoint), now)
        if growth.new_tables and config.model.embedding_zeros_initializer:
            raise UserError(
                f"--embedding_zeros_initializer --allow_growth: table {growth.new_tables[0]} is new, and the weights that read it also start "
                "at zero, so it would never learn; drop --embedding_zeros_initializer"
            )
        return growth
    check_features(checkpoint, now, new_run=config.run.mode == TRAIN and not _continues(config))
    return None


def _warn_of_device(config: Config, workers: int, device: str, warn: Callable[[str], None]) -> None:
    warn_without_effect(config, workers, warn)
    if device == "CPU" and not config.device.cpu:
        for flag in sorted({"tf32", "cpu_offloading_threshold_gb"} & config.given):
            warn(f"--{flag} has no effect: there is no GPU")


def _compare(run: Checked) -> None:
    """Check that the workers agree on everything that must be equal."""
    compare_flags(run.config.flat(), run.world)
    compare_restored(run.checkpoint.identity if run.checkpoint else "nothing", run.world)
    compare_rows(" ".join(split.fingerprint() for split in run.splits.values()), run.config.data.dataset_path, run.world)
    compare_operations(operations_key(), run.world, run.console.warn)


def _reason_finished(run: Checked) -> str | None:
    """Return why the resumed run is finished already; None where it is not."""
    if not run.goes_on:
        return None
    return reason_finished(run.config, run.position, _batches(run), run.chosen_by)


def _batches(run: Checked) -> int:
    """Return the steps of an epoch; 0 where nothing is trained."""
    if "train" not in run.splits:
        return 0
    return run.config.training.steps_per_epoch or math.ceil(run.splits["train"].num_samples / run.config.data.batch_size)


def _published_steps(run: Checked) -> int | None:
    """Return the steps of all epochs; None in a run that only measures speed."""
    options = run.config.training
    return None if run.config.run.log_steps and not options.evals_per_epoch else options.epochs * _batches(run)


def _described(run: Checked, placement: Placement, identity: str, program: str) -> dict[str, Any]:
    """Return the data of the log's line about the run."""
    config, training, size = run.config, run.config.run.mode == TRAIN, run.world.size
    position, batches = run.position, _batches(run)
    of_form = "1,step" if _published_steps(run) is None else "step,steps"
    return {
        "id": identity,
        "program": program,
        "mode": config.run.mode,
        "resumed_step": position.step if run.goes_on else None,
        "resumed_epoch": position.epoch if run.goes_on else None,
        "restored": str(run.checkpoint.folder.absolute()) if run.checkpoint else None,
        "restored_run": saved_id(run.checkpoint) or None,
        "model": architecture_of(config.model).name,
        "dataset": " ".join(map(os.path.abspath, config.data.places)) or None,
        "samples": {name: split.num_samples for name, split in run.splits.items()},
        "fingerprints": {name: split.fingerprint() for name, split in run.splits.items()},
        "steps": steps_in_all(config.training, batches) if training else None,
        "steps_per_epoch": batches if training else None,
        "step_form": of_form if form_of(config) else "epoch,step",
        "batch_size": config.data.batch_size if training else config.data.valid_batch_size,
        "chosen_by": run.chosen_by or None,
        "numerical": list(run.spec.numerical),
        **of_machine(config, size, run.device, run.dtype),
        **of_placement(config, placement, run.dtype, len(run.spec.numerical)),
    }


def _claimed(run: Checked, files: Iterable[Path]) -> Lock | None:
    """Lock the checkpoint folder on the first worker; return None where no lock is needed."""
    options = run.config.training
    if run.config.run.mode != TRAIN or not options.save_checkpoint_path or not run.world.first:
        return None
    most = checkpoint_bytes(run.config, run.tables) + sum(path.stat().st_size for path in files)
    least = most - checkpoint_bytes(run.config, [table for table in run.tables if table.partial])
    restored = run.checkpoint.folder if run.goes_on else None
    return claim(Path(options.save_checkpoint_path), restored, options.overwrite_checkpoints, least, most, run.console.warn)


def _try_folder(run: Checked) -> None:
    path = run.config.training.save_checkpoint_path
    if run.config.run.mode == TRAIN and path:
        names = [f"tables/{table.name}/accumulator" for table in run.tables]
        names += [f"touched_rows/{table.name}_bin" for table in run.tables if table.lazy or table.partial]  # a name as long as that of its bitmap
        try_folder(Path(path), names, run.world)
