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


def message_of(error: BaseException) -> str:
    """Return an error as one line for a log; the name of its class where it is no `UserError`."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return f"ended with code {error.code}"
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")
