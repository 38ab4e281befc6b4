"""Tests of the limits of the client's, the load test's and the server's options."""

import pytest

from serving.client import ClientConfig
from serving.load import LoadConfig
from serving.publish import PublishConfig
from serving.server import ServerConfig


@pytest.mark.parametrize(
    ("kind", "name", "values", "expected"),
    [
        (ClientConfig, "batch_size", (0, 2**31), "at least 1"),
        (ClientConfig, "concurrency", (0, 1025), "1 to 1024"),
        (ClientConfig, "max_requests", (0, -2), "at least 1, or -1 for no limit"),
        (LoadConfig, "experiments", ((), ("static", "quick")), "static, dynamic, open"),
        (LoadConfig, "static_batch_sizes", ((), (1, 0)), "numbers of at least 1"),
        (LoadConfig, "dynamic_batch_sizes", ((), (0,)), "numbers of at least 1"),
        (LoadConfig, "concurrency", ((), (1, -1)), "numbers of at least 1"),
        (LoadConfig, "rates", ((5, 0), (-1,)), "numbers of at least 1"),
        (LoadConfig, "seconds", (0.0, -1.0), "more than 0 seconds"),
        (LoadConfig, "latency_limit_ms", (0.0,), "more than 0 ms"),
        (ServerConfig, "http_port", (-1, 65536), "a port, 0 to 65535"),
        (ServerConfig, "grpc_port", (-1, 65536), "a port, 0 to 65535"),
        (ServerConfig, "metrics_port", (-1, 65536), "a port, 0 to 65535"),
        (ServerConfig, "ready_seconds", (0.0,), "more than 0 seconds"),
        (ServerConfig, "exit_seconds", (-1,), "0 or more seconds"),
        (PublishConfig, "keep", (0,), "at least 1"),
    ],
)
def test_values_beyond_the_limits_are_rejected(kind, name, values, expected):
    for value in values:
        with pytest.raises(ValueError, match=f"^--{name} .*: expected {expected}"):
            kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ClientConfig, {"batch_size": 1, "concurrency": 1, "max_requests": 1}),
        (ClientConfig, {"batch_size": 2**31 - 1, "concurrency": 1024, "max_requests": -1}),
        (LoadConfig, {"rates": (1,), "static_batch_sizes": (1,), "dynamic_batch_sizes": (1,), "concurrency": (1,), "experiments": ("open",)}),
        (ServerConfig, {"http_port": 0, "grpc_port": 65535, "exit_seconds": 0}),
        (PublishConfig, {"keep": 1}),
    ],
)
def test_values_at_the_limits_are_accepted(kind, options):
    made = kind(**options)
    assert {name: getattr(made, name) for name in options} == options
