"""Shards of vectors: every number is one process's, and what each has of it is what an update is given."""

from __future__ import annotations

import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.update.shards import Shard


@in_one_test
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 33, 100, 1024, 4640])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_every_number_is_of_one_process(length, count):
    vector = torch.arange(length)
    shards = Shard(0, count).of_all()
    parts = [shard.of(vector) for shard in shards]
    assert torch.equal(torch.cat(parts), vector)
    assert max(map(len, parts)) == shards[0].room(length)
    assert shards[0].room(length) < length / count + 16
    assert all(shard.bounds(length)[0] % 16 == 0 or len(part) == 0 for shard, part in zip(shards, parts, strict=True))


def test_an_update_is_given_what_its_process_has():
    long, short = torch.arange(100.0), torch.arange(3.0)
    own = [torch.zeros(64), torch.zeros(3)]
    runs = [(long, short), (long + 200, short + 200), own, (long + 400, short + 400)]
    first, second = (shard.narrowed(runs) for shard in Shard(0, 2).of_all())
    assert [[len(each) for each in run] for run in first] == [[64, 3]] * 4
    assert [[len(each) for each in run] for run in second] == [[36]] * 4  # nothing of the short vector
    assert second[0][0][0] == 64
    assert second[3][0][0] == 464
    assert second[2][0].data_ptr() == own[0].data_ptr()
