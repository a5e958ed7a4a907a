"""The two numeric classes of rows (design section 1.3): decode and verify rows come first, then prefill rows."""

from __future__ import annotations


def classes(decode_rows: int, rows: int) -> tuple[tuple[bool, slice], ...]:
    """Whether rows are decode rows, and which: the first `decode_rows`, and the others of `rows`; no empty class.

    A row's result must not depend on which kinds of rows share the step, so products see one kind at a time.
    """
    if decode_rows == 0 or decode_rows == rows:
        return ((decode_rows > 0, slice(None)),)
    return (True, slice(decode_rows)), (False, slice(decode_rows, rows))
