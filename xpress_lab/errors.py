"""The one exception that users are meant to read."""


class LabError(ValueError):
    """Bad input or a missing file, explained in one sentence with a way out.

    The command line prints the sentence and exits with code 2; Python callers
    can catch it apart from programming errors.
    """
