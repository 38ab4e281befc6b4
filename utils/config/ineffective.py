"""Warnings about options that were given but have no effect in the run."""

from collections.abc import Collection, Mapping

from utils.config.config import OPTIONS, Config
from utils.config.option import holds
from utils.config.options import INFERENCE, PLAN, TRAIN
from utils.config.placement import LAZY


def warnings(config: Config, optimizers: Collection[str] = ()) -> list[str]:
    """Return a line for each flag without effect in a run, and one for each reason why keys of the configuration file have none.

    Call it after the checkpoint's options are known.

    Args:
        config: the run's configuration.
        optimizers: optimizers that train some of the model's weights independently of the options.
    """
    useless = _reasons(config, {*_optimizers(config), *optimizers})
    lines = [f"--{name} has no effect {reason}" for name, reason in useless.items() if name not in config.in_file]
    return [*config.legacy, *lines, *_of_file(config.file, {name: reason for name, reason in useless.items() if name in config.in_file})]


def _of_file(file: str | None, useless: Mapping[str, str]) -> list[str]:
    names: dict[str, list[str]] = {}
    for name, reason in useless.items():
        names.setdefault(reason, []).append(name)
    return [f"--config {file}: {', '.join(some)} {'has' if len(some) == 1 else 'have'} no effect {reason}" for reason, some in names.items()]


def _reasons(config: Config, optimizers: set[str]) -> dict[str, str]:
    """Return the given options without effect in this run, and the reasons. `optimizers`: all optimizers in use."""
    values, found = config.flat(), {}
    several = _of_several(config)
    for name in (name for name in OPTIONS if name in config.given):
        facts = OPTIONS[name].metadata
        if facts["modes"] and config.run.mode not in facts["modes"]:
            found[name] = f"with --mode {config.run.mode}"
        elif facts["optimizers"] and not optimizers & set(facts["optimizers"]):
            found[name] = f"without --optimizer {' or '.join(facts['optimizers'])}"
        elif facts["needs"] and not holds(facts["needs"], values):
            found[name] = f"without --{facts['needs'].replace(' or ', ' or --')}"
        elif hindering := next((other for other in facts["not_with"] if holds(other, values)), None):
            found[name] = f"with --{hindering}"
        elif name in several and several[name][0]:
            found[name] = several[name][1]
    return found


def _optimizers(config: Config) -> set[str]:
    """Return the optimizers that the options name."""
    return {config.optimizer.optimizer, config.optimizer.of_tables if config.model.embedding_trainable else config.optimizer.optimizer}


def _of_several(config: Config) -> dict[str, tuple[bool, str]]:
    """Return, for options that depend on several others, whether they have no effect, and the reason."""
    mode, training = config.run.mode, config.training
    synthetic, from_spec = config.data.dataset_type == "synthetic", config.data.synthetic_dataset_use_feature_spec
    drawn = synthetic and not from_spec, "with --dataset_type synthetic, unless --synthetic_dataset_use_feature_spec"
    read = not synthetic or from_spec, "without --dataset_type synthetic, or with a feature specification"
    restores = training.restore_checkpoint_path is not None
    afresh = not restores and training.resume != "auto", "without a checkpoint to restore"
    measured = training.inference_benchmark_steps is not None and mode == INFERENCE, "with --inference_benchmark_steps"
    planned = mode == PLAN and config.placement.table_storage != LAZY, f"with --mode {PLAN}, unless --table_storage {LAZY}"
    return {
        "max_steps": planned if mode == PLAN else measured,
        "best_metric": (mode == TRAIN and not training.evals_per_epoch and training.test_freq is None, "with --evals_per_epoch 0"),
        **dict.fromkeys(("steps_per_epoch", "valid_fraction", "dataset_subset", "synthetic_dataset_train_batches", "dense_update_rows"), planned),
        "dataset_path": drawn,
        "feature_spec": drawn,
        "synthetic_dataset_cardinalities": read,
        "synthetic_dataset_hotness": read,
        "synthetic_dataset_num_numerical_features": read,
        "restore_fallback": afresh,
        "allow_other_transforms": afresh,
        **dict.fromkeys(
            ("embedding_zeros_initializer", "embedding_initializer", "embedding_initializer_scale"),
            (restores and not training.allow_growth, "with --restore_checkpoint_path"),
        ),
    }
