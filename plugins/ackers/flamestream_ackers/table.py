"""The ack table: one XOR per time, not zero while items are in flight.

See paper 002, "Interface".
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from flamecore.errors import ConsistencyError, TimeRegressionError


# Not a count of items in flight: reports come in any order, so the -1 of one item would cancel the +1 of another, and
# both would be missed. Not a set of ids: it grows with the items in flight, and every id has to be sent. One XOR of
# random numbers for each time has neither fault; it misses an item only if numbers cancel by chance, once in 2**64.
class AckTable:
    """Checksums of one segment, one for each cell of `window` units of time.

    Cells count from the head on. It behaves like a ring of `capacity` cells; its cost depends on the cells in use
    alone, since times may be microseconds: a cell exists from its first ack until it is found zero at the lower end.

    Args:
        head: Lower end of the first cell. Times below it have passed.
        capacity: Number of cells from the head on. An ack beyond is rejected.
        window: Units of time for each cell.
        single: Whether this table sees every ack of its segment, so that an ack of a time that has passed is an error.
            In one shard of several such an ack moves the head back: the ack that caused it went to another shard and
            came first.
    """

    __slots__ = ("_cells", "_head", "_heap", "_last", "_single", "_span", "_window")

    def __init__(self, head: int, capacity: int, window: int = 1, *, single: bool = True) -> None:
        self._head = head
        self._window = window
        self._span = capacity * window
        self._single = single
        # Checksum by the lower end of its cell. The heap holds exactly the keys: a cell that is zero stays until it
        # comes to the top, so an ack to a cell in use never touches the heap and no cell is ever in it twice.
        self._cells: dict[int, int] = {}
        self._heap: list[int] = []
        self._last = head

    def __len__(self) -> int:
        """Return the number of cells kept, zero or not."""
        return len(self._cells)

    def ack(self, time: int, xor: int) -> bool:
        """Fold one report into the checksum of `time`.

        Args:
            time: Time of the items handed over.
            xor: XOR of their numbers.

        Returns:
            True if the cell is zero now, so that the head may move.

        Raises:
            TimeRegressionError: `time` has passed, and the table is `single`.
            ConsistencyError: `time` is out of reach, or moving the head back would put a cell in use out of reach.
        """
        cell = time - (time - self._head) % self._window
        cells = self._cells
        if cell in cells:
            cells[cell] = left = cells[cell] ^ xor
            return not left
        if cell < self._head:
            self._move_back(cell, time)
        elif cell >= self._head + self._span:
            raise self._overflow(time)
        self._cells[cell] = xor  # moving back may have made a new dict
        heappush(self._heap, cell)
        if cell > self._last:
            self._last = cell
        return not xor

    def promote(self, limit: int) -> int:
        """Move the head over zero cells, by whole cells below `limit`, and return it.

        Args:
            limit: Time below which no ack can come any more.
        """
        heap = self._heap
        cells = self._cells
        while heap and not cells[heap[0]]:
            del cells[heappop(heap)]
        head = self._head
        room = limit - head
        if room >= self._window:
            if not heap and room >= self._span:
                self._head = limit  # a whole turn of zeros: cells may be cut anew, there are none
            else:
                reach = head + room - room % self._window
                self._head = min(heap[0], reach) if heap else reach
        return self._head

    def _move_back(self, cell: int, time: int) -> None:
        if self._single:
            raise TimeRegressionError(
                f"an ack of time {time} came when everything below {self._head} was announced as past",
                hint="Something was sent before it was acked, or acked twice: a worker must ack what it sends no later "
                "than what it received, and heartbeat a front after the acks of what the front sent.",
                time=time,
                limit=self._head,
            )
        end = cell + self._span
        if self._last >= end:  # a cell may fall out at the far end; zero ones are forgotten, so that none comes back
            if any(xor for start, xor in self._cells.items() if start >= end):
                raise self._overflow(time)
            self._cells = {start: xor for start, xor in self._cells.items() if start < end}
            self._heap = list(self._cells)
            heapify(self._heap)
            self._last = max(self._heap, default=cell)
        self._head = cell

    def _overflow(self, time: int) -> ConsistencyError:
        cells = self._span // self._window
        return ConsistencyError(
            f"an ack of time {time} does not fit a table of {cells} cells of {self._window} from {self._head} on",
            hint="Times must be signed 64-bit numbers, and items in flight no further apart than the table is long.",
            time=time,
            limit=self._head + self._span,
        )
