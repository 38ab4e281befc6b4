"""What a user's mistake is: an error of which one clear line is said, see `commands`."""


class UserError(Exception):
    """Something the user can mend. The message says what was wrong, what was expected and how to mend it, in one line.

    `everywhere` is true where every worker raises the same error at the same point: then only the first one says it.
    """

    everywhere = False
    code = 1  # exit code


class AgreedError(UserError):
    """An error that all workers have told each other."""

    everywhere = True
