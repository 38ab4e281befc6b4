"""The model of a run, with the weights it starts from."""

from model.build import Precision, build_model
from model.embedding.lazy_rows import LazyMemory
from model.sharded_model import ShardedModel
from run.prepare import Prepared
from run.restoring import restoring
from training.state import restore, restore_optimizer
from training.step import Trainer
from utils.config.config import Config


def model_of(run: Prepared) -> ShardedModel:
    """Build the run's model, allocate its tables, and restore its weights. Raises UserError on every worker where they cannot be restored."""
    precision = Precision(run.dtype, run.config.device.xla)
    seed, memory = run.config.run.seed, LazyMemory(run.table_memory, largest_batch(run.config)) if run.placement.lazy else None
    model = build_model(run.config.model, run.placement, run.world, len(run.spec.numerical), seed, precision, memory)
    if run.checkpoint:
        run.world.together(lambda: restoring(lambda: restore(model, run.checkpoint, run.growth)), "restored")
        run.console.say(f"weights restored: {run.checkpoint.folder} (step {run.checkpoint.step})")
        if run.growth:
            run.console.say(f"{run.growth}; training starts at step 0")
    return model


def largest_batch(config: Config) -> int:
    """Return the samples of the largest batch that a run reads."""
    return max(config.data.batch_size, config.data.valid_batch_size, *config.training.inference_benchmark_batch_sizes)


def go_on(run: Prepared, model: ShardedModel, trainer: Trainer) -> None:
    """Restore the optimizers' state and the touched rows where the run resumes another, and release the checkpoint, which is not read after this."""

    def restored() -> None:
        restore_optimizer(model, trainer.groups, run.checkpoint)
        trainer.touched.restore(run.checkpoint)

    if run.goes_on:
        run.world.together(lambda: restoring(restored), "optimizer_restored")
        position = run.position
        run.console.say(f"resuming at epoch {position.epoch}, batch {position.batch}, step {position.step}")
    if run.checkpoint:
        run.checkpoint.release()  # this run may itself remove the checkpoint later
