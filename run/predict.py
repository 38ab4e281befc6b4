"""`--mode predict`: a probability for every row of the test split."""

from run import predictions
from run.prepare import Prepared
from run.scoring import score
from run.weights import model_of
from training.evaluator import Evaluator
from utils.metrics.binary import sigmoid


def predict(run: Prepared) -> None:
    """Score the test split and write the predictions. Raises UserError, on every worker, where they cannot be written."""
    path, model = predictions.check_path(run.config.run.predictions_path), model_of(run)
    scores = score(run, model, Evaluator(model, run.config.device.xla), "test")

    def write() -> None:
        if scores is not None:
            logits, labels = scores
            split = run.splits["test"]
            groups = None if split.spec.group is None else split.read_group(0, split.num_samples)
            predictions.write(path, sigmoid(logits), labels, groups)
            run.console.say(f"{len(logits):,} predictions written: {path}")
            run.log.log((), {"samples": len(logits)})

    run.world.together(write, "predictions")  # nobody leaves before the file is whole
