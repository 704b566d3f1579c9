"""A device that does what it is asked as late, and in as odd an order, as marks allow."""

import ctypes
import random
from collections import deque

import torch
from aegis.data.device_memory import map_tensors


class Mark:
    def __init__(self):
        self.reached = False


class FakeLink:
    """Two queues whose heads are taken in random order, some at each call. Memory is the host's, and full of rubbish.

    ``eager``: from 0, nothing happens before somebody waits for it, to 1.
    """

    pins = None

    def __init__(self, seed, eager=0.3):
        self.device = torch.device("cpu")
        self.copies, self._work = deque(), deque()
        self._random = random.Random(seed)
        self._eager = eager
        self.allocated = 0
        self.marks = 0

    # --- what DeviceIter asks for ---

    def empty(self, shape, dtype):
        self.allocated += 1
        memory = torch.empty(shape, dtype=dtype, device="cpu")
        memory.flatten().view(torch.uint8).fill_(0xA5)
        return memory

    def copy(self, target, source):
        assert target.shape == source.shape
        assert target.is_contiguous()
        if not source.is_contiguous():  # CUDA reads such memory before it returns
            held = source.contiguous()
            self._ask(self.copies, lambda: target.copy_(held))
            return
        address, nbytes = source.data_ptr(), source.nbytes  # a device holds no reference
        self._ask(self.copies, lambda: ctypes.memmove(target.data_ptr(), address, nbytes))

    def run(self, function):
        self._ask(self.copies, function)

    def mark_copies(self):
        return self._mark(self.copies)

    def mark_work(self):
        return self._mark(self._work)

    def copies_wait(self, mark):
        self._ask(self.copies, mark)

    def work_waits(self, mark):
        self._ask(self._work, mark)

    def hand_over(self, tensor):
        self._some()

    def reached(self, mark):
        self._some()
        return mark.reached

    def wait(self, mark):
        while not mark.reached:
            assert self._step(), "a mark that nothing will reach"

    # --- the consumer ---

    def work(self, function):
        """What the consumer does with a batch, some time."""
        self._ask(self._work, function)

    def synchronize(self):
        while self._step():
            pass
        assert not self.copies
        assert not self._work

    # --- the device ---

    def _mark(self, queue):
        mark = Mark()
        self.marks += 1

        def reach():
            mark.reached = True

        self._ask(queue, reach)
        return mark

    def _ask(self, queue, item):
        queue.append(item)
        self._some()

    def _some(self):
        while self._random.random() < self._eager and self._step():
            pass

    def _step(self):
        ready = [q for q in (self.copies, self._work) if q and not (isinstance(q[0], Mark) and not q[0].reached)]
        if not ready:
            return False
        item = self._random.choice(ready).popleft()
        if not isinstance(item, Mark):
            item()
        return True


def flat(batch):
    found = []
    map_tensors(batch, found.append)
    return found


def consume(batches, link, lag):
    """Reads each batch on the device, asked for ``lag`` batches after it was handed out. Keeps none of them."""
    read, held = [], []

    def ask(batch, place):
        link.work(lambda: place.extend(tensor.clone() for tensor in flat(batch)))

    for batch in batches:
        read.append([])
        held.append((batch, read[-1]))
        if len(held) > lag:
            ask(*held.pop(0))
    for item in held:
        ask(*item)
    return read


def same(got, want):
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype is b.dtype
            assert torch.equal(a, b)
