"""Errors that a user can cause; `commands` reports each in one clear line."""


class UserError(Exception):
    """An error that the user can fix. The message is one line: what is wrong, what was expected and how to fix it.

    `everywhere` is true where every worker raises the same error at the same point; then only the first one prints it.
    """

    everywhere = False
    code = 1  # exit code


class AgreedError(UserError):
    """An error that all workers raise at the same point."""

    everywhere = True
