"""`--mode predict`: a probability for every row of a split, which need not have labels."""

from dataloading.keys import read_keys
from run import predictions
from run.prepare import Prepared
from run.scoring import score
from run.weights import model_of
from training.evaluator import Evaluator
from utils.metrics.binary import sigmoid


def predict(run: Prepared) -> None:
    """Score the split and write the predictions. Raises UserError on every worker where they cannot be written."""
    path, model = predictions.check_path(run.config.run.predictions_path), model_of(run)
    name = run.config.run.split
    scores = score(run, model, Evaluator(model, run.config.device.xla), name, groups=run.spec.group is not None)

    def write() -> None:
        if scores is not None:
            split = run.splits[name]
            keys = read_keys(split.spec, name) if run.config.data.dataset_type == "tf_raw" else None
            predictions.write(path, sigmoid(scores.logits), scores.labels if split.labelled else None, scores.groups, scores.weights, keys)
            run.console.say(f"{len(scores.logits):,} predictions written: {path}")
            run.log.log((), {"samples": len(scores.logits)})

    run.world.together(write, "predictions")  # no worker exits before the file is complete
