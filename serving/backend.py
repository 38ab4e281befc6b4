"""An alias of `served.backend`: exports of older commits import it by this name."""

from served.backend import Backend as Backend
