"""An HTTP proxy on the `proxy.py` package, which prints where it listens and what it is asked for.

Names that end in `.test` lead to this machine. With NAME:PASSWORD as its argument it lets in nobody else.
"""

import json
import sys
from ipaddress import ip_address

from proxy import Proxy
from proxy.http.proxy import HttpProxyBasePlugin


def say(event, **rest):
    print(json.dumps({"event": event, **rest}), flush=True)


class Witness(HttpProxyBasePlugin):
    def resolve_dns(self, host, port):
        return ("127.0.0.1" if host.endswith(".test") else None), None

    def before_upstream_connection(self, request):
        say("asked", method=request.method.decode(), host=request.host.decode(), port=request.port)
        return request


if __name__ == "__main__":
    options = {"hostname": ip_address("127.0.0.1"), "port": 0, "plugins": [Witness], "num_acceptors": 1, "num_workers": 1}
    if len(sys.argv) > 1:
        options["basic_auth"] = sys.argv[1]
    with Proxy(["--log-level", "ERROR"], **options) as proxy:
        say("listening", port=proxy.flags.port)
        # Its own processes end with it, and it ends with whoever started it.
        sys.stdin.read()
