"""Options that were given and change nothing in a run: each is named in a warning."""

from collections.abc import Mapping
from dataclasses import fields

from utils.config.config import GROUPS, Config
from utils.config.options import CROSS, INFERENCE, TRAIN, WIDE_AND_DEEP

_SCHEDULE = ("warmup_steps", "warmup_factor", "decay_start_step", "decay_steps", "decay_end_lr", "decay_power")


def warnings(config: Config) -> list[str]:
    """A line for each flag that changes nothing in a run, and one for each reason why keys of the configuration file change nothing.

    To be said once it is known what a checkpoint brings.
    """
    useless = _reasons(config)
    lines = [f"--{name} has no effect {reason}" for name, reason in useless.items() if name not in config.in_file]
    return [*config.legacy, *lines, *_of_file(config.file, {name: reason for name, reason in useless.items() if name in config.in_file})]


def _of_file(file: str | None, useless: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in useless.items():
        names.setdefault(reason, []).append(name)
    return [f"--config {file}: {', '.join(some)} {'has' if len(some) == 1 else 'have'} no effect {reason}" for reason, some in names.items()]


def _reasons(config: Config) -> dict[str, str]:
    """The given options that change nothing in this run, and why."""
    mode, given = config.run.mode, config.given
    used = {config.optimizer.optimizer, config.optimizer.of_tables if config.model.embedding_trainable else config.optimizer.optimizer}
    wide, published = config.model.interaction == WIDE_AND_DEEP, config.optimizer.deep_warmup_epochs is not None
    used |= {"ftrl"} if wide else set()
    found = {}
    for group in GROUPS:
        for field in fields(group):
            modes = field.metadata["modes"]
            if field.name in given and modes and mode not in modes:
                found[field.name] = f"with --mode {mode}"
            if field.name in given and field.metadata["optimizers"] and not used & set(field.metadata["optimizers"]):
                found.setdefault(field.name, f"without --optimizer {' or '.join(field.metadata['optimizers'])}")
    synthetic = config.data.dataset_type == "synthetic"
    from_spec = config.data.synthetic_dataset_use_feature_spec
    useless = {
        "embedding_optimizer": (not config.model.embedding_trainable, "with --embedding_trainable false"),
        "embedding_learning_rate": (not config.model.embedding_trainable, "with --embedding_trainable false"),
        "embedding_l2": (not config.model.embedding_trainable, "with --embedding_trainable false"),
        "max_steps": (config.training.inference_benchmark_steps is not None and mode == INFERENCE, "with --inference_benchmark_steps"),
        "num_cross_layers": (config.model.interaction != CROSS, "without --interaction cross"),
        "cross_layer_projection_dim": (config.model.interaction != CROSS, "without --interaction cross"),
        "bottom_mlp_dims": (wide, "with --interaction wide_and_deep"),
        "wide_pooling": (not wide, "without --interaction wide_and_deep"),
        "linear_learning_rate": (not wide, "without --interaction wide_and_deep"),
        "amp_dtype": (not config.device.amp, "without --amp"),
        **{name: (config.optimizer.decay_steps == 0, "with --decay_steps 0") for name in ("decay_start_step", "decay_power", "decay_end_lr")},
        **({name: (True, "with --deep_warmup_epochs") for name in _SCHEDULE} if published else {}),
        "loss_scale": (not config.device.amp, "without --amp"),
        "best_metric": (mode == TRAIN and not config.training.evals_per_epoch and config.training.test_freq is None, "with --evals_per_epoch 0"),
        "evals_per_epoch": (config.training.test_freq is not None, "with --test_freq"),
        "feature_spec": (synthetic and not from_spec, "with --dataset_type synthetic, unless --synthetic_dataset_use_feature_spec"),
        "dataset_path": (synthetic and not from_spec, "with --dataset_type synthetic, unless --synthetic_dataset_use_feature_spec"),
        "synthetic_dataset_train_batches": (not synthetic, "without --dataset_type synthetic"),
        "synthetic_dataset_valid_batches": (not synthetic, "without --dataset_type synthetic"),
        "synthetic_dataset_cardinalities": (not synthetic or from_spec, "without --dataset_type synthetic, or with a feature specification"),
        "synthetic_dataset_hotness": (not synthetic or from_spec, "without --dataset_type synthetic, or with a feature specification"),
        "synthetic_dataset_num_numerical_features": (not synthetic or from_spec, "without --dataset_type synthetic, or with a feature specification"),
        "synthetic_dataset_use_feature_spec": (not synthetic, "without --dataset_type synthetic"),
        "checkpoint_every_steps": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "checkpoint_every_epoch": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "checkpoint_every_minutes": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "keep_checkpoints": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "keep_best_checkpoint": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "overwrite_checkpoints": (config.training.save_checkpoint_path is None, "without --save_checkpoint_path"),
        "profiled_rank": (config.run.profiler_start_step is None, "without --profiler_start_step"),
        "restore_fallback": (config.training.restore_checkpoint_path is None and config.training.resume != "auto", "without a checkpoint to restore"),
        "allow_growth": (config.training.restore_checkpoint_path is None, "without --restore_checkpoint_path"),
        "allow_other_transforms": (
            config.training.restore_checkpoint_path is None and config.training.resume != "auto",
            "without a checkpoint to restore",
        ),
        "preferred_batch_size": (config.export.max_queue_delay_us == 0, "with --max_queue_delay_us 0"),
        "cpu_offloading_threshold_gb": (config.device.cpu, "with --cpu"),
        "tf32": (config.device.cpu, "with --cpu"),
        "embedding_zeros_initializer": (
            config.training.restore_checkpoint_path is not None and not config.training.allow_growth,
            "with --restore_checkpoint_path",
        ),
    }
    return {name: reason for name, (condition, reason) in useless.items() if name in given and condition} | found
