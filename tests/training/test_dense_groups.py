"""The update of dense weights in one C++ pass: the bits of Keras's optimizers, and nothing changed that is still read."""

import numpy as np
import pytest
import tensorflow as tf

from model.native import DenseRule, update_dense
from tests.model.native_library import built_operations
from training.groups import DenseGroup
from training.optimizers.adagrad import Adagrad, RowwiseAdagrad
from training.optimizers.adam import Adam
from training.optimizers.ftrl import Ftrl
from training.optimizers.rmsprop import Rmsprop
from training.optimizers.sgd import Momentum, Sgd
from training.schedule import LearningRateSchedule

RULES = {
    "sgd": Sgd(),
    "momentum": Momentum(0.9),
    "adagrad": Adagrad(),
    "row-wise adagrad": RowwiseAdagrad(16),
    "adam": Adam(0.9, 0.999),
    "rmsprop": Rmsprop(0.9),
    "rmsprop outside": Rmsprop(0.95, outside_root=True),
}
SHAPES = [(3,), (100_003,), (0,), (300, 257), (1,), ()]
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1e-39, -1e-39, 3e38])


@pytest.fixture(scope="module")
def native():
    return built_operations()


@pytest.fixture
def as_configured():
    """Keep TensorFlow from turning a division by a root into an approximate operation, as `configure_tensorflow` does."""
    before = tf.config.optimizer.get_experimental_options().get("arithmetic_optimization", True)
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    yield
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": before})


def drawn(seed):
    """Return values of every shape, and pairs of special ones: each number of the weights with each of the gradients."""
    found = [np.random.default_rng(seed + i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(SHAPES)]
    return [tf.constant(values) for values in (*found, np.repeat(SPECIAL, 8) if seed == 0 else np.tile(SPECIAL, 8))]


def bits(weight):
    """Return the bits of float32 values, without the sign of NaN."""
    values = weight.numpy()
    return np.where(np.isnan(values), 0x7FC00000, values.view(np.uint32))


def group(rule, native, count=None):
    weights = {str(i): tf.keras.Variable(start, name=f"weight{i}") for i, start in enumerate(drawn(0)[:count])}
    return DenseGroup(weights, rule, LearningRateSchedule(1.0, 0, 1, 1), native=native)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.usefixtures("as_configured")
def test_one_pass_has_the_bits_of_kerass_optimizer_and_leaves_what_is_still_read(native, rule):
    fast, plain = group(rule, native), group(rule, None)

    @tf.function
    def both(step, gradients):
        kept = [variable.read_value() for variable in (fast.weights["1"].value, *fast.slots().values())]
        for one in (fast, plain):
            one.apply(gradients, tf.constant(0.0137), step)
        return kept

    for step in range(3):
        before = [variable.numpy() for variable in (fast.weights["1"].value, *fast.slots().values())]
        kept = both(tf.constant(step, tf.int64), drawn(10 + step))
        for found, expected in zip(kept, before, strict=True):
            np.testing.assert_array_equal(found, expected)  # the graph's results still refer to the memory before the step
        for name in fast.weights:
            np.testing.assert_array_equal(bits(fast.weights[name].value), bits(plain.weights[name].value), f"step {step}, weights {name}")
        assert list(fast.slots()) == list(plain.slots())
        for name, slot in fast.slots().items():
            np.testing.assert_array_equal(bits(slot), bits(plain.slots()[name]), f"step {step}, {name}")
        assert np.abs(fast.weights["1"].value.numpy() - before[0]).max() > 0.001


def operations(function):
    """Return the kinds of operations of a traced function."""
    graph = function.get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def test_every_rule_but_ftrl_takes_one_operation(native):
    for name, rule in {**RULES, "ftrl": Ftrl(0.1, 0.1, -0.5)}.items():
        one = group(rule, native, 2)
        step = tf.function(lambda one=one: one.apply(drawn(3)[:2], tf.constant(0.1), tf.constant(0, tf.int64)))
        assert ("DlrmUpdateDense" in operations(step)) == (name != "ftrl"), name


def test_wrong_weights_change_nothing(native):
    weights = [tf.Variable(tf.ones([2])), tf.Variable(tf.ones([3])), tf.Variable(tf.ones([3], tf.float64)), tf.Variable(tf.ones([2]))]
    plain, momentum = DenseRule("sgd", (), ()), DenseRule("momentum", ("momentum",), (0.9,))
    two, three, rate = tf.ones([2]), tf.ones([3]), tf.constant([0.5])
    for rule, chosen, slots, gradients, scalars, message in (
        (plain, [0, 0], [], [two, two], rate, "each variable once"),
        (momentum, [0], [0], [two], rate, "each variable once"),
        (plain, [0, 1], [], [two, two], rate, r"weights 1: expected float32 of shape \[2\], received float of shape \[3\]"),
        (plain, [0, 2], [], [two, three], rate, r"weights 1: expected float32 of shape \[3\], received double of shape \[3\]"),
        (momentum, [0], [1], [two], rate, r"slots 0: expected float32 of shape \[2\], received float of shape \[3\]"),
        (momentum, [0, 3], [1], [two, two], rate, "momentum of 2 weights received 1 slots and 1 constants"),
        (DenseRule("momentum", (), ()), [0], [3], [two], rate, "momentum of 1 weights received 1 slots and 0 constants"),
        (DenseRule("ftrl", (), ()), [0], [], [two], rate, "ftrl: unknown rule for dense weights"),
        (plain, [0], [], [two], tf.constant(0.5), r"scalars: expected \[1\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            update_dense(native, rule, [weights[i] for i in chosen], [weights[i] for i in slots], gradients, scalars)
    assert all((weight.numpy() == 1).all() for weight in weights)
