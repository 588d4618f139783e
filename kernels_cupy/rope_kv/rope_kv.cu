// Rotates the queries and keys of each row by its position (Su et al. 2021, equation 34), and writes keys and values to the paged
// cache. A row without a sequence (-1) is padding of a captured graph: nothing of it is read or written.
#include "common.cuh"

#define BLOCK_SIZE 16  // positions in a KV block

// grid: (rows, heads + 2 kv_heads). qkv: rows x (heads + 2 kv_heads) x head_dim; q: rows x heads x head_dim.
// cosines, sines: positions x rotary / 2. block_tables: sequences x table_width. keys, values: blocks x kv_heads x 16 x head_dim.
extern "C" __global__ void __launch_bounds__(THREADS)
rope_kv_write(const ACT* __restrict__ qkv, const float* __restrict__ cosines, const float* __restrict__ sines,
              const int* __restrict__ positions, const int* __restrict__ sequence_of_row, const int* __restrict__ block_tables,
              ACT* __restrict__ q, KV* __restrict__ keys, KV* __restrict__ values, int heads, int kv_heads, int head_dim, int rotary,
              int neox, int table_width) {
    const int row = blockIdx.x, part = blockIdx.y, sequence = sequence_of_row[row];
    if (sequence < 0) return;
    const int position = positions[row], half = rotary / 2;
    const ACT* from = qkv + (u64(row) * (heads + 2 * kv_heads) + part) * head_dim;
    const int kv_head = part < heads + kv_heads ? part - heads : part - heads - kv_heads;
    const int block = block_tables[u64(sequence) * table_width + position / BLOCK_SIZE];
    const u64 slot = ((u64(block) * kv_heads + (kv_head < 0 ? 0 : kv_head)) * BLOCK_SIZE + position % BLOCK_SIZE) * head_dim;

    if (part >= heads + kv_heads) {
        for (int i = threadIdx.x; i < head_dim; i += THREADS) store(values + slot + i, to_float(from[i]));
        return;
    }
    for (int i = threadIdx.x; i < half; i += THREADS) {
        const int first = neox ? i : 2 * i, second = neox ? i + half : 2 * i + 1;
        const float x = to_float(from[first]), y = to_float(from[second]);
        const float c = cosines[u64(position) * half + i], s = sines[u64(position) * half + i];
        const float turned_x = x * c - y * s, turned_y = x * s + y * c;
        if (part < heads) {
            ACT* to = q + (u64(row) * heads + part) * head_dim;
            store(to + first, turned_x);
            store(to + second, turned_y);
        } else {
            store(keys + slot + first, turned_x);
            store(keys + slot + second, turned_y);
        }
    }
    for (int i = rotary + threadIdx.x; i < head_dim; i += THREADS) {
        if (part < heads)
            store(q + (u64(row) * heads + part) * head_dim + i, to_float(from[i]));
        else
            store(keys + slot + i, to_float(from[i]));
    }
}
