"""The cases of requests to a server: kind of inputs, dataset, model, number of samples in a batch, and protocol."""

import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

import numpy as np
from served_models import EVERYTHING, criteo_data, export, table_data, train
from weighted_models import inputs_of, write_weighted

import dlrm
from dataloading import generate_outbrain
from model.native_scorer import NativeScorer
from preproc.outbrain import command as outbrain
from run.raw_rows import drawn_columns
from run.served_rows import by_feature, drawn_rows
from serving.connection import GRPC, HTTP, Connection
from serving.server import Server

IDS, RAW = "ids", "raw"
CRITEO, TABLE, OUTBRAIN, WEIGHTED = "criteo", "table", "outbrain", "weighted"
MODELS = {
    "dlrm": {},
    "dcnv2": {"interaction": "cross", "cross_layer_projection_dim": 4, "num_cross_layers": 2, "batch_norm": True},
    "wide_and_deep": {"interaction": "wide_and_deep", "optimizer": "rmsprop"},
}
_TWO = {"bottom_mlp_dims": None, "top_mlp_dims": None, "stream1_dims": "16,8", "stream2_dims": "8"}
OTHERS = {
    "fm": {"interaction": "fm", "bottom_mlp_dims": None, "top_mlp_dims": "1"},
    "deepfm": {"interaction": "fm", "bottom_mlp_dims": None, "top_mlp_dims": "16,8,1"},
    "lr": {"interaction": "none", "bottom_mlp_dims": None, "top_mlp_dims": None, "embedding_dim": None},
    "finalmlp": {"interaction": "finalmlp", "gate_dims": "5", "num_heads": 2, "batch_norm": True} | _TWO,
    "bfloat16": {"interaction": "cross", "cross_layer_projection_dim": 4, "amp": True},
}
# These flags keep logits near 0, where differences in the last bits between the C++ scorer and TensorFlow stay below 1e-6 of a probability.
SMALL = {"embedding_dim": 4, "bottom_mlp_dims": "16,4", "learning_rate": 0.005, "seed": 3}
MOST = 1500
FLIGHT = "in flight"  # SINGLES requests of one sample each, all sent at once
BATCHES = (1, 2, 200, MOST, FLIGHT)
SINGLES = 200
SCHEMES = (GRPC, HTTP)


class Kind(NamedTuple):
    """A model of the repository."""

    inputs: str
    dataset: str
    model: str

    @property
    def name(self) -> str:
        """The model's name in the repository."""
        return "-".join(self)


# Every pair of values of inputs, dataset and model of MODELS occurs, and each model of OTHERS once. As each model is asked for all batches over both
# protocols, so does every other pair.
PAIRS = [
    *(Kind(inputs, CRITEO, model) for inputs, model in zip((RAW, IDS, RAW), MODELS, strict=True)),
    *(Kind(inputs, TABLE, model) for inputs, model in zip((IDS, RAW, IDS), MODELS, strict=True)),
    *(Kind(IDS, OUTBRAIN, model) for model in MODELS),
    *(Kind(RAW if number % 2 else IDS, TABLE if number < 3 else CRITEO, model) for number, model in enumerate(OTHERS)),
]
ALL = [Kind(*one) for one in itertools.product((IDS, RAW), (CRITEO, TABLE, OUTBRAIN), MODELS | OTHERS) if one[:2] != (RAW, OUTBRAIN)]


def outbrain_data(folder: Path) -> Path:
    """Prepare a dataset from synthetic raw files in Outbrain's format; return its folder."""
    assert generate_outbrain.main(["--displays", "300", "--dst", str(folder / "raw")]) == 0
    assert outbrain.main(["--src", str(folder / "raw"), "--dst", str(folder / "data")]) == 0
    return folder / "data"


DATA = {
    CRITEO: criteo_data,
    TABLE: lambda folder: table_data(folder, EVERYTHING),
    OUTBRAIN: outbrain_data,
    WEIGHTED: lambda folder: write_weighted(folder / "data"),
}


class Served:
    """Models of all kinds, trained and exported.

    Args:
        folder: an empty folder for data, checkpoints and the repository.
        kinds: the models' kinds.
    """

    def __init__(self, folder: Path, kinds: list[Kind]):
        self.repository, self._folder, self.data = folder / "repository", folder, {}
        for kind in kinds:
            if not self.checkpoint(kind).exists():
                self._train(kind)
            flags = ("--model_name", kind.name, "--inputs", kind.inputs, "--max_batch_size", MOST, "--max_queue_delay_us", 20_000)
            export(self.checkpoint(kind), self.repository, *flags)

    def checkpoint(self, kind: Kind) -> Path:
        """Return the folder of a model's checkpoints."""
        return self._folder / f"{kind.dataset}-{kind.model}"

    def _train(self, kind: Kind) -> None:
        if kind.dataset not in self.data:
            (self._folder / kind.dataset).mkdir()
            self.data[kind.dataset] = DATA[kind.dataset](self._folder / kind.dataset)
        train(self.data[kind.dataset], self.checkpoint(kind), **SMALL | (MODELS | OTHERS)[kind.model])

    @functools.cache  # noqa: B019 - the object lives as long as a file's tests
    def rows(self, kind: Kind) -> "Rows":
        """Return rows for a model and their scores."""
        loaded = dlrm.load(self.checkpoint(kind), cpu=True)
        mapped = dlrm.load(self.repository / kind.name / "1/checkpoint", mmap=True, cpu=True)  # in bfloat16 its tables are rounded
        if kind.inputs == RAW:
            columns = drawn_columns(mapped.raw_inputs(), seed=11)
            texts = {name: np.array([str(value).encode() for value in values], object) for name, values in columns.items() if values.dtype == object}
            inputs = {name: values[:, np.newaxis] for name, values in (columns | texts).items()}
            scorer, expected = mapped.over_raw_arrays(), loaded.score_raw(columns)
            found, engine = scorer.score(*scorer.checked(columns)), scorer.scorer.engine
        else:
            drawn = drawn_rows(mapped.features, seed=11)
            inputs = inputs_of(drawn)
            scorer, expected = mapped.over_arrays(), loaded.score(by_feature(drawn, mapped.features))
            found, engine = scorer.score(*scorer.checked(drawn.numerical, drawn.ids, drawn.id_weights)), scorer.engine
        return Rows(inputs, found, expected, isinstance(engine, NativeScorer))


class Rows(NamedTuple):
    """Inputs of requests, their scores by `over_arrays` and by the checkpoint; `native` is True if the C++ scorer computes the former."""

    inputs: dict[str, np.ndarray]
    over_arrays: np.ndarray
    checkpoint: np.ndarray
    native: bool

    def part(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """Return the inputs of a request for rows start to stop."""
        return {name: values[start:stop] for name, values in self.inputs.items()}


def check_case(server: Server, served: Served, kind: Kind, scheme: str, batch: int | str) -> None:
    """Send the rows of a case to the server and check every score."""
    rows = served.rows(kind)
    connection = Connection(f"{scheme}://{getattr(server, scheme)}", kind.name)
    try:
        if batch == FLIGHT:
            before = int(connection.statistics().get("execution_count", 0))
            found = np.concatenate(list(in_flight(connection, server, rows)))
            assert int(connection.statistics()["execution_count"]) - before < SINGLES, "no requests were joined into a batch"
        else:
            found = connection.infer(rows.part(0, batch))
    finally:
        connection.close()
    count = SINGLES if batch == FLIGHT else batch
    assert found.shape == (count,)
    if rows.native:
        np.testing.assert_array_equal(found, rows.over_arrays[:count])
    np.testing.assert_allclose(found, rows.over_arrays[:count], atol=4e-3 if kind.model == "bfloat16" else 1e-6, rtol=0)
    # TensorFlow's last bits depend on the number of samples in a batch: a difference of 2.4e-7 was seen for one sample in 200.
    limit = 4e-3 if kind.model == "bfloat16" else 1e-6
    np.testing.assert_allclose(found, rows.checkpoint[:count], atol=limit, rtol=0)
    assert count < 3 or np.ptp(found) > 0.01


def in_flight(connection: Connection, server: Server, rows: Rows) -> Iterator[np.ndarray]:
    """Yield the scores of single samples; all requests are sent before the first answer is awaited."""
    parts = [rows.part(number, number + 1) for number in range(SINGLES)]
    if connection.over_http:
        import tritonclient.http as http

        client = http.InferenceServerClient(server.http, concurrency=SINGLES)
        for request in [client.async_infer(connection.model, connection.tensors(part)) for part in parts]:
            yield request.get_result().as_numpy("probability")[:, 0]
        client.close()
        return
    answers = [Future() for _ in parts]
    for answer, part in zip(answers, parts, strict=True):
        connection.begin(part, lambda scores, error, to=answer: to.set_exception(error) if error else to.set_result(scores))
    for answer in answers:
        yield answer.result(120)
