"""The four modes of dlrm.py: what is built for each, and in which order."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from dataloading.batches import BatchReader, prefetched
from dataloading.needed_memory import check_memory
from dataloading.ranges import ERROR
from dataloading.sources import read_spec, table_rows
from dataloading.vocabularies import RECORD, check_vocabularies
from model import inference
from model.announcement import announcement
from model.build import build_model, build_schedule, build_trainer
from model.compilation import warn_without_effect
from model.dlrm import DLRM
from model.evaluator import Evaluator
from model.gradient_slices import settled
from model.growth import Growth
from model.metrics import Metrics, evaluate, sigmoid
from model.native import operations_key
from model.placement import Placement
from model.plan import build_placement, share_batches, slots_per_table
from model.snapshot import Snapshot
from model.state import arrays, check_equal, check_features, describe, digest, features_of, parts, restore, restore_optimizer, snapshot
from model.trainer import TensorBatch, Trainer, to_device
from model.training import Position, Training, reason_finished
from opening import open_checkpoint, open_splits, restoring, sound
from utils import launch, predictions
from utils.agreement import compare_flags, compare_operations, compare_restored, compare_rows
from utils.checkpoint import Saving
from utils.checkpoint_folder import Lock
from utils.checkpoint_trial import try_folder
from utils.config import TRAIN, Config
from utils.console import Console
from utils.distributed import World, join
from utils.inherit import changes, check_continues, facts, inherit, training_facts
from utils.logging import RunLog
from utils.memory import available_bytes, device_bytes
from utils.pace import expected_step_ms, set_cycle_time
from utils.profile_folder import check_profile
from utils.runtime import compute_dtype, configure_tensorflow, set_precision
from utils.save_folder import claim
from utils.signals import StopRequest

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

    def __init__(self, config: Config, world: World):
        stacks = config.model.bottom_mlp_dims, config.model.top_mlp_dims
        set_cycle_time(expected_step_ms(config.data.batch_size, stacks, launch.size(), config.device.amp))
        self.world = join(world)
        # Before anything that may run a collective: TensorFlow cannot be configured once it has made a tensor.
        self.device = configure_tensorflow(config.device, self.world.local_rank, self.world.local_size)
        if not world.meets:  # nobody could be asked before
            compare_flags(config.flat(), self.world)
        self._lock: Lock | None = None
        self._growth: Growth | None = None
        self._vocabularies: dict = {}  # the first worker's, who writes the manifest
        self.console = Console(self.world.first)
        self._fallback = sound(config, self.world, self.console.warn)
        self._together(lambda: self._prepare(config), "prepared")  # others may have no fault to find: they hear it before they wait for this worker
        self._compare()
        self.finished = self._reason_finished()
        self.log = RunLog("", {})
        if self.finished:
            return
        self._together(self._claim_folder, "claimed")
        try:
            self._try_folder()
            self.placement = self._place()
            path = self.config.run.log_path if self.world.first else ""
            self.log = RunLog(path, self.config.flat(), append=self._goes_on, warn=self.console.warn)
            self._announce()
        except BaseException:
            self._release()
            raise

    def _prepare(self, config: Config) -> None:
        """Everything a worker can check alone."""
        check_profile(config.run, self.world.rank, self.world.size)
        self.checkpoint = self._fallback or open_checkpoint(config, self.console.warn)
        self.config = inherit(config, self.checkpoint.manifest, self._continues(config)) if self.checkpoint else config
        for line in self.config.warnings:
            self.console.warn(line)
        self.spec = read_spec(self.config.data)
        self.names = [feature.name for feature in self.spec.categorical]
        self.rows = table_rows(self.config.data, self.spec)
        if self.checkpoint:
            tables = dict(zip(self.names, self.rows, strict=True))
            if self.config.training.allow_growth:
                self._growth = Growth(self.checkpoint, features_of(self.checkpoint), tables, self.spec.numerical)
            else:
                check_features(self.checkpoint, tables, self.spec.numerical)
        self.config = share_batches(self.config, self.world.size)
        self.splits = open_splits(self.config, self.spec, self.console.warn)
        if self._goes_on:
            check_continues(self.checkpoint, self._run_facts())
            for line in changes(self.config, config, self.checkpoint.manifest):
                self.console.say(line)
        if self.world.first:
            self._vocabularies = check_vocabularies(self.config, self.spec, self.checkpoint, self.console.warn, goes_on=self._goes_on)
        check_memory(self.config, self.spec, self.splits, self.world.local_size)
        set_precision(self.config.device)
        self.dtype = compute_dtype(self.config.device, self.device)
        self.config = settled(self.config, self.device, self.world.size, self.console.warn)
        warn_without_effect(self.config, self.console.warn)
        if self.device == "CPU" and not self.config.device.cpu:
            for flag in sorted({"tf32", "cpu_offloading_threshold_gb"} & self.config.given):
                self.console.warn(f"--{flag} has no effect: there is no GPU")

    def _compare(self) -> None:
        """What must be the same on all workers."""
        compare_flags(self.config.flat(), self.world)
        compare_restored(self.checkpoint.identity if self.checkpoint else "nothing", self.world)
        compare_rows(" ".join(split.fingerprint() for split in self.splits.values()), self.config.data.dataset_path, self.world)
        compare_operations(operations_key(), self.world, self.console.warn)

    def _reason_finished(self) -> str | None:
        """Why there is nothing to do: the run that this one goes on with has come to its end."""
        if not self._goes_on:
            return None
        batches = math.ceil(self.splits["train"].num_samples / self.config.data.batch_size)
        return reason_finished(self.config.training, self._position(), batches, self._chosen_by)

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
        self._release()

    def _release(self) -> None:
        if self._lock:
            self._lock.release()

    # The modes ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train, evaluate, save."""
        if self.finished:
            path = self.config.training.save_checkpoint_path or self.config.training.restore_checkpoint_path
            self.console.say(f"{path}: the run is finished: {self.finished}; nothing is changed. Give it more with --epochs, for instance")
            return
        reader = self._reader("train", self.config.data.batch_size)
        trainer = build_trainer(self.config, self.model, self.dtype)
        position = self._continue(trainer)
        chosen_by = self._chosen_by
        with StopRequest() as stop:
            training = Training(
                trainer,
                build_schedule(self.config.optimizer),
                self.config,
                len(reader),
                lambda epoch, first: Batches(reader, epoch, first),
                (lambda: self._evaluate(chosen_by)) if chosen_by else None,
                lambda: check_equal(self.model, trainer),
                self.console,
                self.log,
                begin_save=self._begin_save(trainer) if self.config.training.save_checkpoint_path else None,
                split=chosen_by,
                stop=stop,
                position=position,
            )
            figures = training.run()
        if chosen_by == "valid":
            metrics = self._evaluate("test") if "test" in self.splits else None
            figures |= {"valid_auc": figures["auc"], "valid_loss": figures["validation_loss"]}
            figures |= {"auc": metrics and metrics.auc, "validation_loss": metrics and metrics.log_loss}
        self.log.log((), figures)
        rate = f": {figures['throughput']:,.0f} samples/s" if math.isfinite(figures["throughput"]) else ""
        self.console.say(f"trained on {figures['samples']:,} samples in {figures['steps']:,} steps{rate}")

    def _begin_save(self, trainer: Trainer) -> Callable[[Position, bool], tuple[Saving, Snapshot]]:
        """Begins to write a checkpoint; see `Training`."""
        path, keep = self.config.training.save_checkpoint_path, self.config.training.keep_checkpoints
        about = facts(self.config) | {"features": describe(self.model, self.spec.numerical), "run": self._run_facts(), RECORD: self._vocabularies}
        begun = []

        def begin(position: Position, best: bool) -> tuple[Saving, Snapshot]:
            frozen, now = snapshot(self.model), about | {"position": asdict(position)}
            written = parts(self.model, trainer, frozen)
            copies = digest(self.model, trainer)
            alone = not begun and not self._goes_on  # what else is there is to be overwritten, or there is nothing else
            begun.append(position.step)
            everything = arrays(self.model, trainer)
            saving = Saving(path, position.step, everything, written, now, self.world, keep=keep, best=best, digest=copies, alone=alone)
            return saving, frozen

        return begin

    @property
    def _chosen_by(self) -> str:
        """The split that the model is chosen by; empty where there is none."""
        return next((name for name in ("valid", "test") if name in self.splits), "")

    @property
    def _goes_on(self) -> bool:
        """Whether this run goes on where the checkpoint's was."""
        return self.checkpoint is not None and self._continues(self.config)

    @staticmethod
    def _continues(config: Config) -> bool:
        options = config.training
        return config.run.mode == TRAIN and options.resume != "weights" and not options.allow_growth

    def _position(self) -> Position:
        return Position(**self.checkpoint.manifest["position"])

    def _run_facts(self) -> dict:
        train = self.splits["train"]
        return training_facts(self.config, train.num_samples, train.fingerprint())

    def _continue(self, trainer: Trainer) -> Position:
        """Where the restored run was, its optimizers' state restored; the start where there is none."""
        if not self._goes_on:
            return Position()
        self._together(lambda: restoring(lambda: restore_optimizer(self.model, trainer, self.checkpoint)), "optimizer_restored")
        position = self._position()
        trainer.start_at(position.step)
        self.console.say(f"going on at epoch {position.epoch}, batch {position.batch}, step {position.step}")
        return position

    def _together(self, action: Callable[[], None], name: str) -> None:
        """Do something that can fail on one worker only; then it is an error on all."""
        self.world.together(action, name)

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
        path, scores = predictions.check_path(self.config.run.predictions_path), self._score("test")

        def write() -> None:
            if scores is not None:
                logits, labels = scores
                predictions.write(path, sigmoid(logits), labels)
                self.console.say(f"{len(logits):,} predictions written: {path}")
                self.log.log((), {"samples": len(logits)})

        self._together(write, "predictions")  # nobody leaves before the file is whole

    # What they are built from -----------------------------------------------------------------------------------------

    @cached_property
    def model(self) -> DLRM:
        """The model, its tables allocated, its weights restored."""
        overwritten = self.checkpoint is not None and self._growth is None  # what is overwritten need not be drawn
        zeros = self.config.model.embedding_zeros_initializer or overwritten
        options = {"dtype": self.dtype, "seed": self.config.run.seed, "zeros": zeros, "xla": self.config.device.xla}
        model = build_model(self.config.model, self.names, self.placement, self.world, len(self.spec.numerical), **options)
        if self.checkpoint:
            self._together(lambda: restoring(lambda: restore(model, self.checkpoint, self._growth)), "restored")
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

    def _claim_folder(self) -> None:
        options = self.config.training
        if self.config.run.mode == TRAIN and options.save_checkpoint_path and self.world.first:
            arrays_a_table = 1 + (slots_per_table(self.config.optimizer.optimizer) if self.config.model.embedding_trainable else 0)
            size = arrays_a_table * 4 * self.config.model.embedding_dim * sum(self.rows)
            restored = self.checkpoint.folder if self._goes_on else None
            self._lock = claim(Path(options.save_checkpoint_path), restored, options.overwrite_checkpoints, size)

    def _try_folder(self) -> None:
        path = self.config.training.save_checkpoint_path
        if self.config.run.mode == TRAIN and path:
            try_folder(Path(path), [f"tables/{name}/accumulator" for name in self.names], self.world)

    def _announce(self) -> None:
        samples = {name: split.num_samples for name, split in self.splits.items()}
        for line in announcement(self.config, self.world.size, self.device, self.dtype, self.placement, samples):
            self.console.say(line)


def _shown(value: float | None, digits: int = 10) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"
