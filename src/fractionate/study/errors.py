"""What can be wrong with a store."""

import errno


class StoreError(ValueError):
    """The store cannot be used as it is; the message names the path and the mend."""


class StoreVersionError(StoreError):
    """The store was written by a newer version."""


class StoreFullError(StoreError):
    """There is no room left. Finished stages are whole."""


def is_full(error: BaseException) -> bool:
    """Whether a full disk is behind an error: libraries wrap it in errors of their own."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error)
