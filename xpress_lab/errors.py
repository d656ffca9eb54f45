"""The one exception that users are meant to read, and how others are quoted in it."""


class LabError(ValueError):
    """Bad input or a missing file, explained in one sentence with a way out.

    The command line prints the sentence and exits with code 2; Python callers
    can catch it apart from programming errors.
    """


def first_line(error: BaseException, most: int = 160) -> str:
    """What an exception says, in one line of bearable length; its name if nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most]
