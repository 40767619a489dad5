"""Node 1 fails while a thread of its own goes on, so that its process never ends."""

import threading

import jdaso

with jdaso.Session(timeout_seconds=3) as session:
    session.agree("meet", [])
    if session.node == 1:
        threading.Thread(target=threading.Event().wait).start()
        raise KeyError("boom")
    session.agree("meet again", [])
