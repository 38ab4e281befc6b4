"""The four modes of dlrm.py: what is built for each, and in which order."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path

from dataloading.batches import BatchReader, Split, prefetched
from dataloading.sources import open_split, read_spec, table_rows
from model import inference
from model.build import build_model, build_schedule, build_trainer
from model.dlrm import DLRM
from model.evaluator import Evaluator
from model.metrics import Metrics, evaluate, sigmoid
from model.placement import Placement
from model.plan import build_placement, check_shared
from model.state import arrays, check_equal, check_features, describe, parts, restore, restore_optimizer
from model.trainer import TensorBatch, Trainer, to_device
from model.training import Position, Training
from utils import predictions
from utils.checkpoint import Checkpoint, newest, save
from utils.config import EVAL, INFERENCE, PREDICT, TRAIN, Config
from utils.console import Console
from utils.distributed import join
from utils.errors import UserError
from utils.inherit import check_continues, facts, inherit, training_facts
from utils.logging import RunLog
from utils.memory import GIB, available_bytes, check_fits, device_bytes
from utils.runtime import compute_dtype, configure_tensorflow
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

    def __init__(self, config: Config):
        self.world = join()
        self.console = Console(self.world.first)
        for line in config.warnings:
            self.console.warn(line)
        try:
            self._prepare(config)
        except UserError as error:  # others may have no fault to find: tell them before they wait for this worker
            self.world.agree(str(error), "prepared")
        self.world.agree(None, "prepared")
        self.placement = self._place()
        self.log = RunLog(self.config.run.log_path if self.world.first else "", self.config.flat())
        self._announce()

    def _prepare(self, config: Config) -> None:
        """Everything a worker can check alone."""
        self.checkpoint = self._open_checkpoint(config)
        self.config = inherit(config, self.checkpoint.manifest) if self.checkpoint else config
        self.spec = read_spec(self.config.data)
        self.names = [feature.name for feature in self.spec.categorical]
        self.rows = table_rows(self.config.data, self.spec)
        if self.checkpoint:
            check_features(self.checkpoint, dict(zip(self.names, self.rows, strict=True)), self.spec.numerical)
        self._share_batches()
        self.splits = self._open_splits()
        if self.checkpoint and self.config.run.mode == TRAIN and self.config.training.resume != "weights":
            check_continues(self.checkpoint, training_facts(self.config, self.splits["train"].num_samples))
        self._check_disk()
        self.device = configure_tensorflow(self.config.device, self.world.local_rank, self.world.local_size)
        self.dtype = compute_dtype(self.config.device, self.device)

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

    # The modes ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Train, evaluate, save."""
        reader = self._reader("train", self.config.data.batch_size)
        trainer = build_trainer(self.config, self.model, self.dtype)
        run_facts = training_facts(self.config, reader.split.num_samples)
        position = self._continue(trainer, run_facts)

        def write(position: Position, best: bool) -> None:
            about = facts(self.config) | {"features": describe(self.model, self.spec.numerical), "run": run_facts, "position": asdict(position)}
            path, keep = self.config.training.save_checkpoint_path, self.config.training.keep_checkpoints
            folder = save(path, position.step, arrays(self.model, trainer), parts(self.model, trainer), about, self.world, keep=keep, best=best)
            self.console.say(f"checkpoint written: {folder}")

        with StopRequest() as stop:
            training = Training(
                trainer,
                build_schedule(self.config.optimizer),
                self.config,
                len(reader),
                lambda epoch, first: Batches(reader, epoch, first),
                self._evaluate if "test" in self.splits else None,
                lambda: check_equal(self.model),
                self.console,
                self.log,
                save=write if self.config.training.save_checkpoint_path else None,
                stop=stop,
                position=position,
            )
            figures = training.run()
        self.log.log((), figures)
        self.console.say(f"trained on {figures['samples']:,} samples in {figures['steps']:,} steps: {figures['throughput']:,.0f} samples/s")

    def _continue(self, trainer: Trainer, run_facts: dict) -> Position:
        """Where the restored run was, its optimizers' state restored; the start where there is none."""
        if self.checkpoint is None or self.config.training.resume == "weights":
            return Position()
        self._together(lambda: restore_optimizer(self.model, trainer, self.checkpoint), "optimizer_restored")
        position = Position(**self.checkpoint.manifest["position"])
        trainer.start_at(position.step)
        self.console.say(f"going on at epoch {position.epoch}, batch {position.batch}, step {position.step}")
        return position

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
        metrics = self._evaluate()
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
        scores = self._score()
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
        zeros = self.config.model.embedding_zeros_initializer or self.checkpoint is not None  # what is overwritten need not be drawn
        numerical = len(self.spec.numerical)
        seed = self.config.run.seed
        model = build_model(self.config.model, self.names, self.placement, self.world, numerical, dtype=self.dtype, seed=seed, zeros=zeros)
        if self.checkpoint:
            self._together(lambda: restore(model, self.checkpoint), "restored")
            self.console.say(f"weights restored: {self.checkpoint.folder} (step {self.checkpoint.step})")
        return model

    @cached_property
    def evaluator(self) -> Evaluator:
        """Scores batches with the model."""
        return Evaluator(self.model, self.config.device.xla)

    def _evaluate(self) -> Metrics:
        scores = self._score()
        mine = evaluate(*scores, self.config.training.auc_thresholds) if scores is not None else None
        metrics = self.world.from_first(mine, "metrics")
        kind = "exact" if self.config.training.auc_thresholds is None else f"{self.config.training.auc_thresholds} thresholds"
        self.console.say(
            f"test AUC {_shown(metrics.auc)} ({kind}), log loss {metrics.log_loss:.6f}, normalised entropy {_shown(metrics.normalized_entropy, 6)}, "
            f"calibration {_shown(metrics.calibration, 6)}, {metrics.samples:,} samples"
        )
        if metrics.auc is None:
            self.console.warn("all labels of the test split are the same: its AUC is undefined")
        return metrics

    def _score(self):
        reader = self._reader("test", self.config.data.valid_batch_size)
        samples = reader.split.num_samples
        with self.console.progress(samples, "evaluation", "samples") as progress:
            return self.evaluator.score(Batches(reader), samples, progress.advance)

    def _reader(self, split: str, batch_size: int) -> BatchReader:
        shuffled = split == "train" and self.config.data.shuffle_batch_order
        return BatchReader(
            self.splits[split],
            batch_size,
            features=self.model.embedding.global_features,
            local_features=self.model.embedding.local_features,
            rank=self.world.rank,
            num_workers=self.world.size,
            num_rows=self.rows if self.config.data.hash_indices else None,
            shuffle_seed=self.config.run.seed if shuffled else None,
        )

    # Checks before the expensive part -----------------------------------------------------------------------------------

    def _open_checkpoint(self, config: Config) -> Checkpoint | None:
        path = config.training.restore_checkpoint_path
        if path is not None:
            return Checkpoint(path)
        if config.run.mode == TRAIN and config.training.resume == "auto":
            if config.training.save_checkpoint_path is None:
                raise UserError("--resume auto needs --save_checkpoint_path: that is where it looks for a checkpoint")
            return newest(config.training.save_checkpoint_path)
        if config.run.mode in (EVAL, PREDICT):
            raise UserError(f"--restore_checkpoint_path is missing: --mode {config.run.mode} needs a trained model")
        if config.run.mode == INFERENCE:
            self.console.warn("no --restore_checkpoint_path: the benchmark runs with random weights, its AUC means nothing")
        return None

    def _open_splits(self) -> dict[str, Split]:
        training = self.config.run.mode == TRAIN
        stored = self.config.data.dataset_type == "tf_raw"
        names = ["train", "test"] if training else ["test"]
        if training and stored and self.spec.sources is not None and "test" not in self.spec.sources:
            self.console.warn(f"{self.spec.path}: there is no test split; the model will not be evaluated")
            names.remove("test")
        if self.config.run.mode == PREDICT:
            predictions.check_path(self.config.run.predictions_path)
        return {name: open_split(self.config.data, self.spec, name, self.config.run.seed) for name in names}

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
            check_fits(
                4 * self.config.model.embedding_dim * sum(self.rows), f"--save_checkpoint_path {path}: the tables", shutil.disk_usage(path).free
            )

    def _announce(self) -> None:
        config, mode, workers = self.config, self.config.run.mode, self.world.size
        size = config.data.batch_size if mode == TRAIN else config.data.valid_batch_size
        parameters = config.model.embedding_dim * sum(self.rows)
        fullest = max(self.placement.stored(worker) for worker in range(workers))
        self.console.say(
            f"{mode} on {workers} worker{'s' if workers > 1 else ''} ({self.device}, {self.dtype}{', XLA' if config.device.xla else ''}): "
            f"batch {size} global, {size // workers} local; {len(self.rows)} tables, {parameters:,} embedding parameters "
            f"({4 * parameters / GIB:.1f} GiB{f', {fullest / GIB:.1f} GiB on the fullest worker' if workers > 1 else ''}); "
            + ", ".join(f"{name} {split.num_samples:,} samples" for name, split in self.splits.items())
        )


def _shown(value: float | None, digits: int = 10) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"
