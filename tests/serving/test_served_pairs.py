"""Tests on the real server that scores equal the checkpoint's, for every pair of values of inputs, dataset, model, batch and protocol."""

import pytest
from real_server import started, tracebacks
from served_matrix import BATCHES, PAIRS, SCHEMES, Served, check_case


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("pairs"), PAIRS)


@pytest.fixture(scope="module")
def server(served):
    with started(served.repository) as server:
        yield server
        assert tracebacks(server) == []


@pytest.mark.costly("the first of the file trains and exports 14 models for one server")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", PAIRS, ids=[kind.name for kind in PAIRS])
def test_server_scores_equal_the_expected_scores(served, server, kind, scheme, batch):
    check_case(server, served, kind, scheme, batch)
