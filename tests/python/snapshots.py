"""A caching allocator in miniature, which notes what PyTorch's notes: for snapshots of trainings that never ran.

gpu = Gpu(1000 * MIB); a = gpu.alloc(20 * MIB, FORWARD("net.py", 12)); gpu.free(a); gpu.oom(...); gpu.dump(path)
"""

import pickle

MIB = 1 << 20
TORCH = "env/lib/site-packages/torch"


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


def own(line, file="me/train.py"):
    return frame(file, line, "train")


# Stacks as PyTorch tells them: innermost first, with frames of C++ above.
CXX = frame("??", 0, "at::detail::empty_generic(...)")


def forward(line):
    return [CXX, frame(f"{TORCH}/nn/functional.py", 2000, "linear"), frame("me/net.py", line, "forward"),
            frame(f"{TORCH}/nn/modules/module.py", 1700, "_call_impl"), own(5)]  # fmt: skip


def loss(line):
    return [CXX, frame(f"{TORCH}/nn/functional.py", 3000, "cross_entropy"), own(line)]


def backward(line):
    return [CXX, frame(f"{TORCH}/autograd/graph.py", 800, "_engine_run_backward"), frame(f"{TORCH}/_tensor.py", 600, "backward"), own(line)]  # fmt: skip


def update(line):
    return [CXX, frame(f"{TORCH}/optim/adamw.py", 300, "_multi_tensor_adamw"), own(line)]


def state(line):
    return [CXX, frame(f"{TORCH}/optim/adamw.py", 150, "_init_group"), own(line)]


def parameter(line):
    return [CXX, frame(f"{TORCH}/nn/modules/module.py", 900, "convert"), frame(f"{TORCH}/nn/modules/module.py", 900, "_apply"), own(line)]  # fmt: skip


def plain(line):
    return [CXX, own(line)]


class Gpu:
    """First fit in segments; a new segment where none has room."""

    def __init__(self, total_bytes, segment_bytes=20 * MIB, history=True):
        self.total_bytes, self.segment_bytes, self.history = total_bytes, segment_bytes, history
        self.segments, self.live, self.trace = {}, {}, []
        self.next = 1 << 40

    @property
    def device_free_bytes(self):
        return self.total_bytes - sum(self.segments.values())

    def holes(self):
        found = []
        for start, size in sorted(self.segments.items()):
            at = start
            for address in sorted(a for a in self.live if start <= a < start + size):
                if address > at:
                    found.append((at, address - at))
                at = address + self.live[address][0]
            if at < start + size:
                found.append((at, start + size - at))
        return found

    def note(self, action, **entry):
        if self.history:
            self.trace.append({"action": action, "stream": 0, "time_us": len(self.trace), **entry})

    def alloc(self, size, frames):
        """The address, or None where memory is out: then that is noted."""
        place = next((at for at, hole in self.holes() if hole >= size), None)
        if place is None:
            segment = max(self.segment_bytes, size)
            if segment > self.device_free_bytes:
                for start in [s for s, n in self.segments.items() if not any(s <= a < s + n for a in self.live)]:
                    self.note("segment_free", addr=start, size=self.segments[start], frames=[])
                    del self.segments[start]
            if segment > self.device_free_bytes:
                self.note("oom", size=size, device_free=self.device_free_bytes, frames=frames)
                return None
            place, self.next = self.next, self.next + segment + MIB
            self.segments[place] = segment
            self.note("segment_alloc", addr=place, size=segment, frames=frames)
        self.live[place] = (size, frames)
        self.note("alloc", addr=place, size=size, frames=frames)
        return place

    def free(self, address):
        size, frames = self.live.pop(address)
        self.note("free_requested", addr=address, size=size, frames=[])
        self.note("free_completed", addr=address, size=size, frames=[])
        return frames

    def snapshot(self):
        segments = []
        for start, size in sorted(self.segments.items()):
            blocks = [
                {"address": a, "size": n, "requested_size": n, "state": "active_allocated", "frames": f}
                for a, (n, f) in self.live.items()
                if start <= a < start + size
            ]
            blocks += [
                {"address": a, "size": n, "requested_size": 0, "state": "inactive", "frames": []}
                for a, n in self.holes()
                if start <= a < start + size
            ]
            blocks.sort(key=lambda block: block["address"])
            used = sum(b["size"] for b in blocks if b["state"] != "inactive")
            segments.append(
                {"device": 0, "address": start, "total_size": size, "allocated_size": used, "active_size": used,
                 "stream": 0, "segment_type": "large", "blocks": blocks, "frames": []}
            )  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [self.trace],
            "allocator_settings": {},
            "external_annotations": [],
        }

    def dump(self, path):
        with open(path, "wb") as file:
            pickle.dump(self.snapshot(), file)
        return str(path)
