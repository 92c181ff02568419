"""The echo agent of the Python SDK of ACP, as it is, but for lines over the 50 MiB that the SDK reads by default.

    roomy_echo_agent.py DIRECTORY       where echo_agent.py is
"""

import asyncio
import sys

from acp import run_agent

sys.path.insert(0, sys.argv[1])

from echo_agent import EchoAgent  # noqa: E402

asyncio.run(run_agent(EchoAgent(), stdio_buffer_limit_bytes=256 << 20))
