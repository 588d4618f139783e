"""`helexa plan`: its words on a known model and machine."""

from __future__ import annotations

from helexa import config as configuration
from helexa.catalogue.model_shape import ModelShape, read_shape
from helexa.commands.plan import explain
from helexa.formats.gguf import GGUFFile
from workers.machine import MemoryLimit

SHAPE = ModelShape("llama", 30, 9, 3, 64, 49152, 8192, 97_000_000, 540_000_000)


def words(limit: MemoryLimit, **flags: object) -> str:
    return "\n".join(explain("smollm2", SHAPE, limit, configuration.load(None, flags))) + "\n"


def test_a_large_machine(golden):
    """Memory for the most seats that `auto` takes."""
    golden("plan_large.txt", words(MemoryLimit(16 * 2**30, "70% of free memory (22.9 GiB)")))


def test_a_small_machine(golden):
    """Memory for a few; what one more would take."""
    golden("plan_small.txt", words(MemoryLimit(600 * 2**20, "70% of the cgroup's memory limit (0.8 GiB)")))


def test_settings_change_it(golden):
    """Seats, context and the reference ops, as configured."""
    flags = {"admission.seats": 4, "model.context": 2048, "cpu.ops": "reference"}
    golden("plan_configured.txt", words(MemoryLimit(2 * 2**30, "memory.limit_mib"), **flags))


def test_a_hybrid_model(golden):
    """Layers without KV, and what they hold of each seat and snapshot."""
    shape = ModelShape("qwen35", 24, 8, 2, 256, 248_320, 262_144, 600_000_000, 3_000_000_000, 18, 18 * 1_122_304)
    limit = MemoryLimit(4 * 2**30, "memory.limit_mib")
    lines = explain("qwen3.5", shape, limit, configuration.load(None, {}))
    golden("plan_hybrid.txt", "\n".join(lines) + "\n")


def test_the_shape_is_the_files(tiny_model_path):
    """Read from the header alone."""
    shape = read_shape(GGUFFile.open(tiny_model_path))
    assert (shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.context) == (2, 4, 2, 16, 260, 512)
    assert shape.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2 and shape.packed_bytes == shape.float_bytes
