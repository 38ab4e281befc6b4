"""The name by which exports of older commits know `served.backend`."""

from served.backend import Backend as Backend
