"""What was chosen, in plain values: this goes to the server's process, which has no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Choice:
    """The route that one operator takes for one class of rows and one format."""

    operator: str
    rows: (
        str  # "few" (decode and verify rows), "many" (prefill rows), or "any": the operator treats all alike
    )
    format: str  # type of the values, or format of the weight that the operator streams
    route: str
    reason: str  # why the routes before it in the operator's table were not taken
    calls: int = 0  # that asked for it; a captured graph asks once, however often it is replayed
