#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/cluster_in_a_box: nodes, rates, and that nothing stays behind. Skips (77) where it may not."""
import json
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / "tools" / "cluster_in_a_box"
NAME = f"test{os.getpid() % 100000}"
SERVER = """
import socket, sys
server = socket.create_server(("0.0.0.0", 5000))
client, _ = server.accept()
got = 0
while got < int(sys.argv[1]):
    got += len(client.recv(1 << 20))
client.sendall(b"x")
"""
CLIENT = """
import socket, sys, time
for attempt in range(100):
    try:
        server = socket.create_connection(("node1", 5000))
        break
    except OSError:
        time.sleep(0.05)
start = time.monotonic()
server.sendall(bytes(int(sys.argv[1])))
server.recv(1)
print(time.monotonic() - start)
"""


def box(*words, check=True):
    done = subprocess.run([TOOL, words[0], "--name", NAME, *words[1:]], capture_output=True, text=True, timeout=60)
    if check and done.returncode != 0:
        raise AssertionError(f"{words}: {done.stderr}")
    return done


def space(node):
    return ["ip", "netns", "exec", f"coterie-{NAME}-{node}"]


def seconds_for(num_bytes):
    """From node 0 to node 1."""
    server = subprocess.Popen([*space(1), sys.executable, "-c", SERVER, str(num_bytes)])
    try:
        client = [*space(0), sys.executable, "-c", CLIENT, str(num_bytes)]
        return float(subprocess.run(client, capture_output=True, text=True, check=True, timeout=30).stdout)
    finally:
        server.wait(timeout=30)


def leftovers():
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    files = [path for folder in ("/etc/netns", "/dev/shm", "/run/coterie_cluster") if Path(folder).exists()
             for path in Path(folder).iterdir() if NAME in path.name]
    return [line for line in spaces.splitlines() if NAME in line] + files


class Cluster(unittest.TestCase):
    def setUp(self):
        box("up", "--nodes", "2", "--rate", "100mbit")

    def tearDown(self):
        box("down")
        self.assertEqual(leftovers(), [])
        self.assertIn("there is none", box("down").stdout)

    def test_ranks_see_two_hosts(self):
        seen = box("run", "-n", "4", "sh", "-c", "echo $(hostname) $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK")
        self.assertEqual(sorted(seen.stdout.split("\n")), ["", "node0 0 0", "node0 1 1", "node1 2 0", "node1 3 1"])
        self.assertEqual(box("run", "-n", "2", "sh", "-c", "exit 3", check=False).returncode, 3)

    def test_links_have_their_rate_and_it_can_change(self):
        megabyte = 1_000_000
        self.assertGreater(seconds_for(megabyte), 0.9 * 0.08)  # the wire's: nothing can be faster
        box("rate", "10mbit", "--node", "1")
        self.assertGreater(seconds_for(megabyte), 0.9 * 0.8)
        self.assertEqual(json.loads(box("status").stdout)["rates"], [100_000_000, 10_000_000])

    def test_nothing_stays_after_a_kill(self):
        run = subprocess.Popen([TOOL, "run", "--name", NAME, "-n", "4", "sleep", "1000"])
        end = time.monotonic() + 20
        while json.loads(box("status").stdout)["processes"] < 6 and time.monotonic() < end:
            time.sleep(0.1)
        run.send_signal(signal.SIGKILL)
        run.wait()
        self.assertGreater(json.loads(box("status").stdout)["processes"], 0)
        box("up", "--nodes", "3", "--rate", "1gbit")  # an earlier one goes first, with all its processes
        self.assertEqual(json.loads(box("status").stdout)["processes"], 0)

    def test_bad_input_is_named(self):
        for words, said in ((("rate", "3"), "rate '3'"), (("rate", "1mbit", "--node", "7"), "--node 7"),
                            (("run", "-n", "3", "true"), "-n 3"), (("up", "--nodes", "0"), "--nodes 0")):
            refused = box(*words, check=False)
            self.assertEqual(refused.returncode, 2, words)
            self.assertIn(said, refused.stderr)
        self.assertTrue(json.loads(box("status").stdout)["is_up"])


def cannot():
    """Why namespaces cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "needs root"
    done = box("up", "--nodes", "1", check=False)
    box("down", check=False)
    return done.stderr.strip() if done.returncode != 0 else None


if __name__ == "__main__":
    reason = cannot()
    if reason is not None:
        print("skipped:", reason)
        sys.exit(77)
    unittest.main()
