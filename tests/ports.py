"""Ports of loopback that nobody listens at."""

import socket
from contextlib import ExitStack


def free_ports(num: int) -> list[int]:
    """All different: none is closed before the last is chosen."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(num)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
