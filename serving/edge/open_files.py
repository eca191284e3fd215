"""How many files, and so connections, this process may open."""

import resource


def raise_file_limit() -> int:
    """Let this process open as many files as it may: a connection is one. Gives how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2**20 if hard == resource.RLIM_INFINITY else hard
