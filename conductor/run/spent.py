"""What a run that is continued has spent so far, by its record: that much of its budget is gone."""

from decimal import Decimal

from conductor.model.call import Call
from conductor.model.usage import Usage
from conductor.run.call_bound import call_bound
from conductor.run.plan_record import UnmeteredCall
from conductor.run.record import Record, RunRecords
from conductor.run.team import Team


def count_spent(records: RunRecords, team: Team, lost_usd: Decimal) -> tuple[Decimal, Usage]:
    """What the calls of a run and of the runs inside it took by now. Those of which nothing is on record count with
    the most that they can have taken, and with no less than `lost_usd` together.
    """
    open_usd, usage = Decimal(0), Usage()
    for record in records:
        usage += sum((call.usage for call in records.calls_of(record) if call.usage is not None), Usage())
        for call in record.unmetered_calls:
            worst_usd, bound = _worst(call, record, team)
            open_usd += Decimal(0) if call.cost_usd else worst_usd  # 0: nobody said what it took
            usage += bound
    return records.known_usd + max(open_usd, lost_usd), usage


def _worst(call: UnmeteredCall, record: Record, team: Team) -> tuple[Decimal, Usage]:
    """The most that a call can have taken. Nothing for a run inside this one, which counts for itself, and
    for a worker that is gone.
    """
    conductor, sampling = team.conductor, record.task.sampling
    if call.writes_plan and conductor is not None and conductor.member.name == call.worker:
        member, sampling = conductor.member, conductor.sampling
    else:
        member = team.pool.get(call.worker)
    if member is None:
        return Decimal(0), Usage()
    bound = call_bound(member, Call(call.prompt, member.with_defaults(sampling)))
    return (member.worst_price.most(bound) if member.worst_price else Decimal(0)), bound
