"""The one family of errors that a user can cause and cure: printed as one message, without a traceback."""


class UserError(Exception):
    """What was found, what is wrong with it, and the cure; the command line prints it and exits with 1."""
