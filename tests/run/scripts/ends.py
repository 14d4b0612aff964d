"""Trains a little, then ends as it is told to."""

import atexit
import os
import signal
import sys
import time

import torch

torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.ones(64, 64))
optimizer = torch.optim.SGD([weight], lr=0.1)


def fail():
    raise ValueError("the script's own")


for _ in range(2):
    (weight @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
atexit.register(lambda: print("at exit", weight.sum().item()))
print("trained")
how = sys.argv[1]
if how == "exit":
    sys.exit(int(sys.argv[2]))
elif how == "text":
    sys.exit("a reason")
elif how == "raise":
    fail()
elif how == "numpy":
    weight.numpy()
elif how == "os_exit":
    os._exit(7)
elif how == "handled":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
elif how == "waits":
    print("waiting", flush=True)
    time.sleep(60)
else:
    sys.stdout.flush()
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(10)
