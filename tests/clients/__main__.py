"""`make clients`: run all clients, or the named ones."""

import sys

from tests.clients import run_agents, run_conformance, run_default, run_node, run_programs
from tests.clients.agents import AGENTS
from tests.clients.programs import ELSEWHERE, LUCEBENCH, NODE


def main(words: list[str]) -> int:
    """Run the clients named in `words`, or all. Return the number of groups that failed."""
    agents = {each.name for each in AGENTS}
    programs = {each.client for each in (*NODE, *ELSEWHERE, LUCEBENCH)}
    choices = agents | programs | {"node", "default", "programs", "conformance", "--record"}
    if unknown := [word for word in words if word not in choices]:
        sys.exit(f"No client is called {', '.join(unknown)}. There are {', '.join(sorted(choices))}.")
    chosen, failed = {*words} - {"--record"}, 0
    if not chosen or chosen & agents:
        failed += run_agents.main(words)
    if not chosen or "node" in chosen:
        failed += run_node.main([])
    if not chosen or "default" in chosen:
        failed += run_default.main([])
    if not chosen or chosen & programs or "programs" in chosen:
        failed += run_programs.main([word for word in words if word in programs])
    if not chosen or "conformance" in chosen:
        failed += run_conformance.main([])
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
