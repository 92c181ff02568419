"""Runs an agent's program, and writes down what goes in (">>> ") and out ("<<< "), line by line, in the order of time.

    record_agent.py FILE COMMAND...

This is how the recordings in crates/lifecycle/fixtures are made: FILE is appended to, with "!!! run" before each start.
"""

import os
import subprocess
import sys
import threading

lock = threading.Lock()


def copy(source, target, mark, out):
    for line in source:
        with lock:
            out.write(mark + line)
            out.flush()
        target.write(line)
        target.flush()
    target.close()


def main():
    file, *command = sys.argv[1:]
    with open(file, "ab") as out:
        out.write(b"!!! run\n")
        out.flush()
        agent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        told = threading.Thread(target=copy, args=(sys.stdin.buffer, agent.stdin, b">>> ", out), daemon=True)
        told.start()
        copy(agent.stdout, sys.stdout.buffer, b"<<< ", out)
        # A thread still waits for the host.
        os._exit(agent.wait() & 0xFF)


main()
