"""Operations on money for the store's writer. Every call with a price is held before it is sent, even without
a cap.

A hold also records, after a replica was killed, what may have been spent. Only open holds change, so each
operation is idempotent.
"""

from serving.accounts import postgresql, sqlite
from serving.accounts.hold import Bill, Entry, HoldRequest, Refusal
from serving.database.writer import Operation

SETTLES_WITHIN_S = 0.02
"""Seconds that a bill may wait to be batched with others. No request waits for it: until then its hold
counts, and a hold that is refused meanwhile is tried again after it."""
HOLD: Operation[HoldRequest, Refusal | None] = Operation("hold", postgresql.hold, sqlite.hold)
"""Reserve budget. The result is None, or the window that is too tight."""
SETTLE: Operation[Bill, None] = Operation(
    "settle", postgresql.settle, sqlite.settle, is_kept=True, patience_s=SETTLES_WITHIN_S
)
"""Replace a hold by its bill, in full, even if that is more. Correct a hold that was posted as lost."""
VOID: Operation[HoldRequest, None] = Operation("void", postgresql.void, sqlite.void, is_kept=True)
"""Release a hold without a call. If the hold does not exist yet, it cannot be made any more."""
ENTER: Operation[Entry, None] = Operation("entry", postgresql.enter, sqlite.enter, is_kept=True)
"""Hold and settle in one step, regardless of caps, because the call was already made."""
SWEEP: Operation[int, int] = Operation("sweep", postgresql.sweep, sqlite.sweep)
"""Post open holds of dead replicas as lost, at the held amount. The item is the maximum number; the result is
the actual one."""
RENEW: Operation[str, None] = Operation("renewal of a lease", postgresql.renew, sqlite.renew)
"""Renew the lease of a replica, given its id."""
RELEASE: Operation[str, None] = Operation("release of a lease", postgresql.release, sqlite.release)
"""End the lease of a replica. Its remaining holds are swept."""
