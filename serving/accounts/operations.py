"""What the store's writer can do with money. Every call with a price is held before it is opened, cap or no
cap: a hold is also the intent that tells, after a replica was killed, what may have been spent.

Only an open hold moves, so that each of these can be done twice.
"""

from serving.accounts import postgresql, sqlite
from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal
from serving.database.writer import Operation

SETTLES_WITHIN_S = 0.02
"""What a bill may wait for others. Nobody waits for it, the hold stands for it, and a hold that is refused
meanwhile is asked again after it.
"""
HOLD: Operation[HoldRequest, Refusal | None] = Operation("hold", postgresql.hold, sqlite.hold)
"""Reserve; None where it is held, else what is in the way."""
SETTLE: Operation[Bill, None] = Operation(
    "settle", postgresql.settle, sqlite.settle, is_kept=True, patience_s=SETTLES_WITHIN_S
)
"""Replace a hold by its bill, in full, also where that is more; correct one that was posted as lost."""
VOID: Operation[HoldRequest, None] = Operation("void", postgresql.void, sqlite.void, is_kept=True)
"""Give a hold back: nothing was called. One that is not there yet cannot be made any more."""
ENTER: Operation[Entry, None] = Operation("entry", postgresql.enter, sqlite.enter, is_kept=True)
"""Hold and settle at once, whatever the caps: the call was made."""
SWEEP: Operation[int, int] = Operation("sweep", postgresql.sweep, sqlite.sweep)
"""Post the open holds of dead replicas as lost, at what was held, up to so many; gives how many."""
RENEW: Operation[str, None] = Operation("renewal of a lease", postgresql.renew, sqlite.renew)
"""A replica, by its id, lives."""
RELEASE: Operation[str, None] = Operation("release of a lease", postgresql.release, sqlite.release)
"""A replica ends. What it still holds is swept."""
