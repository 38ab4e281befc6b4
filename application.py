"""The four modes of dlrm.py: what is built for each, and in which order."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from dataloading.batches import BatchReader, Split, prefetched
from dataloading.ranges import ERROR
from dataloading.sources import open_split, open_training_splits, read_spec, table_rows
from model import inference
from model.build import build_model, build_schedule, build_trainer
from model.compilation import announced, warn_without_effect
from model.dlrm import DLRM
from model.evaluator import Evaluator
from model.gradient_slices import announcement, settled
from model.growth import Growth
from model.metrics import Metrics, evaluate, sigmoid
from model.native import native_operations
from model.placement import Placement
from model.plan import build_placement, check_shared, slots_per_table
from model.snapshot import Snapshot
from model.state import arrays, check_equal, check_features, describe, features_of, parts, restore, restore_optimizer, snapshot
from model.trainer import TensorBatch, Trainer, to_device
from model.training import Position, Training
from utils import launch, predictions
from utils.checkpoint import Checkpoint, Saving, newest
from utils.checkpoint_folder import Lock, complete_steps, tidy
from utils.config import EVAL, INFERENCE, PREDICT, TRAIN, Config
from utils.console import Console
from utils.distributed import join
from utils.errors import UserError
from utils.fallback import older, sound_checkpoint
from utils.inherit import check_continues, facts, inherit, training_facts
from utils.logging import RunLog
from utils.manifest import DamagedError
from utils.memory import GIB, available_bytes, check_fits, device_bytes
from utils.pace import expected_step_ms, set_cycle_time
from utils.runtime import compute_dtype, configure_tensorflow
from utils.signals import StopRequest

T = TypeVar("T")

INFERENCE_STEPS = 1000  # batches measured of each size where --max_steps says nothing


class Batches:
    """The batches of a split on the device; each iteration starts again."""

    def __init__(self, reader: BatchReader, epoch: int = 0, first: int = 0):
        self._reader, self._epoch, self._first = reader, epoch, first

    def __iter__(self) -> Iterator[TensorBatch]:
        return prefetched(self._reader.epoch(self._epoch, self._first), to_device)


class Application:
    """A run: everything cheap is checked when it is constructed, before a table is allocated.

    Raises:
        UserError: the dataset, the checkpoint, a path or the machine cannot do what the options ask.
    """

    def __init__(self, config: Config):
        stacks = config.model.bottom_mlp_dims, config.model.top_mlp_dims
        set_cycle_time(expected_step_ms(config.data.batch_size, stacks, launch.size(), config.device.amp))
        self.world = join()
        self._lock: Lock | None = None
        self._growth: Growth | None = None
        self.console = Console(self.world.first)
        for line in config.warnings:
            self.console.warn(line)
        self._fallback = self._sound_checkpoint(config)
        try:
            self._prepare(config)
        except UserError as error:  # others may have no fault to find: tell them before they wait for this worker
            self.world.agree(str(error), "prepared")
        self.world.agree(None, "prepared")
        self.placement = self._place()
        self.log = RunLog(self.config.run.log_path if self.world.first else "", self.config.flat(), append=self._goes_on)
        self._announce()

    def _prepare(self, config: Config) -> None:
        """Everything a worker can check alone."""
        self.checkpoint = self._open_checkpoint(config)
        self.config = inherit(config, self.checkpoint.manifest) if self.checkpoint else config
        self.spec = read_spec(self.config.data)
        self.names = [feature.name for feature in self.spec.categorical]
        self.rows = table_rows(self.config.data, self.spec)
        if self.checkpoint:
            tables = dict(zip(self.names, self.rows, strict=True))
            if self.config.training.allow_growth:
                self._growth = Growth(self.checkpoint, features_of(self.checkpoint), tables, self.spec.numerical)
            else:
                check_features(self.checkpoint, tables, self.spec.numerical)
        self._share_batches()
        self.splits = self._open_splits()
        if self._goes_on:
            check_continues(self.checkpoint, self._run_facts())
        self._check_disk()
        self.device = configure_tensorflow(self.config.device, self.world.local_rank, self.world.local_size)
        self.dtype = compute_dtype(self.config.device, self.device)
        self.config = settled(self.config, self.device, self.world.size, self.console.warn)
        warn_without_effect(self.config, self.console.warn)
        if self.device == "CPU" and not self.config.device.cpu:
            for flag in sorted({"tf32", "cpu_offloading_threshold_gb"} & self.config.given):
                self.console.warn(f"--{flag} has no effect: there is no GPU")

    def _place(self) -> Placement:
        """Where the tables go, the same on every worker; raises UserError where they do not fit."""
        host = available_bytes() // self.world.local_size
        device = device_bytes(self.world.local_rank) if self.device == "GPU" else host
        device, host = (min(values) for values in zip(*self.world.everyone((device, host), "memory"), strict=True))
        return build_placement(self.config, self.rows, self.world.size, device, host if self.device == "GPU" else 0)

    def __enter__(self) -> "Application":
        return self

    def __exit__(self, *failure) -> None:
        for split in self.splits.values():
            split.close()
        self.log.close()
        if self._lock:
            self._lock.release()

    # The modes ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train, evaluate, save."""
        reader = self._reader("train", self.config.data.batch_size)
        trainer = build_trainer(self.config, self.model, self.dtype)
        position = self._continue(trainer)
        path, keep = self.config.training.save_checkpoint_path, self.config.training.keep_checkpoints
        about = facts(self.config) | {"features": describe(self.model, self.spec.numerical), "run": self._run_facts()}

        def begin_save(position: Position, best: bool) -> tuple[Saving, Snapshot]:
            frozen, now = snapshot(self.model), about | {"position": asdict(position)}
            written = parts(self.model, trainer, frozen)
            return Saving(path, position.step, arrays(self.model, trainer), written, now, self.world, keep=keep, best=best), frozen

        chosen_by = next((name for name in ("valid", "test") if name in self.splits), None)

        with StopRequest() as stop:
            training = Training(
                trainer,
                build_schedule(self.config.optimizer),
                self.config,
                len(reader),
                lambda epoch, first: Batches(reader, epoch, first),
                (lambda: self._evaluate(chosen_by)) if chosen_by else None,
                lambda: check_equal(self.model),
                self.console,
                self.log,
                begin_save=begin_save if path else None,
                split=chosen_by or "",
                stop=stop,
                position=position,
            )
            figures = training.run()
        if chosen_by == "valid":
            metrics = self._evaluate("test") if "test" in self.splits else None
            figures |= {"valid_auc": figures["auc"], "valid_loss": figures["validation_loss"]}
            figures |= {"auc": metrics and metrics.auc, "validation_loss": metrics and metrics.log_loss}
        self.log.log((), figures)
        self.console.say(f"trained on {figures['samples']:,} samples in {figures['steps']:,} steps: {figures['throughput']:,.0f} samples/s")

    @property
    def _goes_on(self) -> bool:
        """Whether this run goes on where the checkpoint's was."""
        options = self.config.training
        return self.checkpoint is not None and self.config.run.mode == TRAIN and options.resume != "weights" and not options.allow_growth

    def _run_facts(self) -> dict:
        train = self.splits["train"]
        return training_facts(self.config, train.num_samples, train.fingerprint())

    def _continue(self, trainer: Trainer) -> Position:
        """Where the restored run was, its optimizers' state restored; the start where there is none."""
        if not self._goes_on:
            return Position()
        self._together(lambda: self._restoring(lambda: restore_optimizer(self.model, trainer, self.checkpoint)), "optimizer_restored")
        position = Position(**self.checkpoint.manifest["position"])
        trainer.start_at(position.step)
        self.console.say(f"going on at epoch {position.epoch}, batch {position.batch}, step {position.step}")
        return position

    def _restoring(self, action: Callable[[], T]) -> T:
        """Read from a checkpoint; where it is damaged, the error says what else there is."""
        try:
            return action()
        except DamagedError as error:
            before = older(error.folder)
            hint = f"; --restore_fallback takes the newest one before it that is whole (there is {before[0].name})" if before else ""
            raise UserError(f"{error}{hint}") from None

    def _together(self, action: Callable[[], None], name: str) -> None:
        """Do something that can fail on one worker only; then it is an error on all."""
        error = None
        try:
            action()
        except UserError as problem:
            error = str(problem)
        self.world.agree(error, name)

    def evaluate(self) -> None:
        """Score the test split with a restored model."""
        metrics = self._evaluate("test")
        self.log.log((), {"auc": metrics.auc, "test_loss": metrics.log_loss, "samples": metrics.samples})

    def inference(self) -> None:
        """Measure latency and throughput of every batch size."""
        options = self.config.training
        sizes = options.inference_benchmark_batch_sizes or (self.config.data.valid_batch_size,)
        steps = options.max_steps if options.max_steps != -1 else INFERENCE_STEPS
        figures: dict = {}
        for size in sizes:
            with self.console.progress(steps + options.benchmark_warmup_steps, f"inference, batch {size}", "batches") as progress:
                batches = Batches(self._reader("test", size))
                result = inference.benchmark(
                    self.evaluator, batches, size, options.benchmark_warmup_steps, steps, options.auc_thresholds, progress.advance
                )
            if not self.world.first:
                continue
            figures |= result
            if len(sizes) > 1:
                figures |= {f"{name}_batch_{size}": value for name, value in result.items()}
            self.console.say(
                f"batch {size}: {result['mean_inference_throughput']:,.0f} samples/s, latency mean {1e3 * result['mean_inference_latency']:.3f} ms, "
                + ", ".join(f"p{q} {1e3 * result[f'p{q}_inference_latency']:.3f} ms" for q in (90, 95, 99))
                + f"; AUC {_shown(result['auc'])} over {result['samples']:,} samples"
            )
        self.log.log((), figures)

    def predict(self) -> None:
        """Write a probability for every row of the test split."""
        path = predictions.check_path(self.config.run.predictions_path)
        scores = self._score("test")
        if scores is not None:
            logits, labels = scores
            predictions.write(path, sigmoid(logits), labels)
            self.console.say(f"{len(logits):,} predictions written: {path}")
            self.log.log((), {"samples": len(logits)})
        self.world.agree(None, "predictions")  # nobody leaves before the file is whole

    # What they are built from -----------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> DLRM:
        """The model, its tables allocated, its weights restored."""
        overwritten = self.checkpoint is not None and self._growth is None  # what is overwritten need not be drawn
        zeros = self.config.model.embedding_zeros_initializer or overwritten
        options = {"dtype": self.dtype, "seed": self.config.run.seed, "zeros": zeros, "xla": self.config.device.xla}
        model = build_model(self.config.model, self.names, self.placement, self.world, len(self.spec.numerical), **options)
        if self.checkpoint:
            self._together(lambda: self._restoring(lambda: restore(model, self.checkpoint, self._growth)), "restored")
            self.console.say(f"weights restored: {self.checkpoint.folder} (step {self.checkpoint.step})")
            if self._growth:
                self.console.say(f"{self._growth}; training starts at step 0")
        return model

    @cached_property
    def evaluator(self) -> Evaluator:
        """Scores batches with the model."""
        return Evaluator(self.model, self.config.device.xla)

    def _evaluate(self, split: str) -> Metrics:
        scores = self._score(split)
        mine = evaluate(*scores, self.config.training.auc_thresholds) if scores is not None else None
        metrics = self.world.from_first(mine, "metrics")
        kind = "exact" if self.config.training.auc_thresholds is None else f"{self.config.training.auc_thresholds} thresholds"
        self.console.say(
            f"{split} AUC {_shown(metrics.auc)} ({kind}), log loss {metrics.log_loss:.6f}, "
            f"normalised entropy {_shown(metrics.normalized_entropy, 6)}, calibration {_shown(metrics.calibration, 6)}, {metrics.samples:,} samples"
        )
        if metrics.auc is None:
            self.console.warn(f"all labels of the {split} split are the same: its AUC is undefined")
        return metrics

    def _score(self, split: str):
        reader = self._reader(split, self.config.data.valid_batch_size)
        samples = reader.split.num_samples
        with self.console.progress(samples, "evaluation", "samples") as progress:
            scores = self.evaluator.score(Batches(reader), samples, progress.advance)
        if self.config.data.out_of_range != ERROR:
            mended = sum(self.world.everyone(reader.out_of_range, "out_of_range"))
            self.console.say(f"{split}: {mended:,} ids out of range (--out_of_range {self.config.data.out_of_range})")
        return scores

    def _reader(self, split: str, batch_size: int) -> BatchReader:
        train = split == "train"
        return BatchReader(
            self.splits[split],
            batch_size,
            features=self.model.embedding.global_features,
            local_features=self.model.embedding.local_features,
            rank=self.world.rank,
            num_workers=self.world.size,
            num_rows=self.rows,
            out_of_range=self.config.data.out_of_range,
            uncounted=self.model.embedding.uncounted_features,
            shuffle_seed=self.config.run.seed if train and self.config.data.shuffle_batch_order else None,
            window=self.config.data.shuffle_window if train else None,
            window_seed=self.config.run.seed,
        )

    # Checks before the expensive part -----------------------------------------------------------------------------------

    def _sound_checkpoint(self, config: Config) -> Checkpoint | None:
        """The checkpoint to restore where `--restore_fallback` wants all of it read first."""
        options = config.training
        path = options.restore_checkpoint_path or (options.save_checkpoint_path if options.resume == "auto" else None)
        if not options.restore_fallback or path is None or (options.restore_checkpoint_path is None and not complete_steps(Path(path))):
            return None
        return sound_checkpoint(path, self.world, self.console.warn)

    def _open_checkpoint(self, config: Config) -> Checkpoint | None:
        if self._fallback:
            return self._fallback
        path = config.training.restore_checkpoint_path
        if path is not None:
            return self._restoring(lambda: Checkpoint(path))
        if config.run.mode == TRAIN and config.training.resume == "auto":
            if config.training.save_checkpoint_path is None:
                raise UserError("--resume auto needs --save_checkpoint_path: that is where it looks for a checkpoint")
            return self._restoring(lambda: newest(config.training.save_checkpoint_path))
        if config.run.mode in (EVAL, PREDICT):
            raise UserError(f"--restore_checkpoint_path is missing: --mode {config.run.mode} needs a trained model")
        if config.run.mode == INFERENCE:
            self.console.warn("no --restore_checkpoint_path: the benchmark runs with random weights, its AUC means nothing")
        return None

    def _open_splits(self) -> dict[str, Split]:
        seed = self.config.run.seed
        if self.config.run.mode == TRAIN:
            splits = open_training_splits(self.config.data, self.spec, seed)
            if "test" not in splits:
                self.console.warn(f"{self.spec.path}: there is no test split; the model will not be tested")
            return splits
        if self.config.run.mode == PREDICT:
            predictions.check_path(self.config.run.predictions_path)
        return {"test": open_split(self.config.data, self.spec, "test", seed)}

    def _share_batches(self) -> None:
        """Every worker takes the same number of samples of a batch; what nobody asked for is rounded up to that."""
        workers, data = self.world.size, self.config.data
        if "valid_batch_size" not in self.config.given:
            rounded = math.ceil(data.valid_batch_size / workers) * workers
            self.config = replace(self.config, data=replace(data, valid_batch_size=rounded))
        sizes = [("batch_size", data.batch_size)] if self.config.run.mode == TRAIN else []
        sizes.append(("valid_batch_size", self.config.data.valid_batch_size))
        sizes += [("inference_benchmark_batch_sizes", size) for size in self.config.training.inference_benchmark_batch_sizes]
        for flag, size in sizes:
            check_shared(flag, size, workers)

    def _check_disk(self) -> None:
        path = self.config.training.save_checkpoint_path
        if self.config.run.mode == TRAIN and path and self.world.first:
            Path(path).mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise UserError(f"--save_checkpoint_path {path}: no permission to write there")
            self._lock = Lock(Path(path))
            tidy(Path(path))
            arrays_a_table = 1 + (slots_per_table(self.config.optimizer.optimizer) if self.config.model.embedding_trainable else 0)
            size = arrays_a_table * 4 * self.config.model.embedding_dim * sum(self.rows)
            check_fits(size, f"--save_checkpoint_path {path}: the tables and their optimizer slots", shutil.disk_usage(path).free)

    def _announce(self) -> None:
        config, mode, workers = self.config, self.config.run.mode, self.world.size
        size = config.data.batch_size if mode == TRAIN else config.data.valid_batch_size
        parameters = config.model.embedding_dim * sum(self.rows)
        fullest = max(self.placement.stored(worker) for worker in range(workers))
        self.console.say(
            f"{mode} on {workers} worker{'s' if workers > 1 else ''} ({self.device}, {self.dtype}{announced(config)}"
            f"{', C++ operations' if native_operations() else ''}): "
            f"batch {size} global, {size // workers} local; {len(self.rows)} tables, {parameters:,} embedding parameters "
            f"({4 * parameters / GIB:.1f} GiB{f', {fullest / GIB:.1f} GiB on the fullest worker' if workers > 1 else ''}); "
            + ", ".join(f"{name} {split.num_samples:,} samples" for name, split in self.splits.items())
        )
        if mode == TRAIN:
            self.console.say(announcement(config, workers, self.device))


def _shown(value: float | None, digits: int = 10) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"
