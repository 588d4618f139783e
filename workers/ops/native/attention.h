// Attention of a few queries of one KV head: softmax(q k / sqrt(D)) v over positions in blocks of 16 from position 0, with a
// running maximum and sum (Milakov and Gimelshein 2018). A query's sums never see the other queries of its tile.
//
// `Ruled` tiles have a window (each query begins at a position of its own) or a soft cap on scores (Gemma 2, 2024). They are
// compiled apart, so that models with neither pay for neither. Blocks still begin at multiples of 16 from position 0.
#pragma once
#include "functions.h"
#include "half.h"
#include "kernels.h"
#include "layout.h"
#include "linear.h"
#include "rows.h"

namespace helexa {

static inline const uint8_t* block_of(const AttentionTile& tile, int block) {
    return tile.cache + static_cast<size_t>(tile.blocks[block]) * tile.block_stride;
}

// The first block that a query of the tile sees.
template <bool Ruled> static inline int first_block_of(const AttentionTile& tile) {
    if constexpr (!Ruled) return 0;
    int start = tile.starts[0];
    for (int i = 1; i < tile.count; i++) start = tile.starts[i] < start ? tile.starts[i] : start;
    return start / kBlockTokens;
}

// Where block `index` lies, or the block after the last of `blocks` that the next tile starts with: what memory is asked for.
template <bool Ruled>
static inline const uint8_t* upcoming(const AttentionTile& tile, const AttentionTile* next, int index, int blocks) {
    if (index < blocks || next == nullptr) return block_of(tile, index < blocks ? index : blocks - 1);
    const int last = (next->limits[0] - 1) / kBlockTokens, block = first_block_of<Ruled>(*next) + index - blocks;
    return block_of(*next, block < last ? block : last);
}

// Scores of Blocks whole blocks: lanes are positions, summed over the head dim in rising order. A score that is not finite
// becomes NaN, so that an overflowed key shows in its row rather than being weighted 0. Meanwhile memory is asked for the Ahead
// blocks that come next: a sequence's blocks lie anywhere, so the hardware cannot guess them.
template <class Isa, bool Ruled, int Queries, int Blocks, int Ahead>
void score_blocks(const AttentionTile& tile, const AttentionTile* next, int first_block, int blocks,
                  float (*scores)[Queries][kBlockTokens]) {
    const uint8_t *keys[Blocks], *later[Ahead];
    typename Isa::F sums[Blocks][Queries];
    HELEXA_UNROLL
    for (int b = 0; b < Blocks; b++) {
        keys[b] = block_of(tile, first_block + b);
        HELEXA_UNROLL
        for (int i = 0; i < Queries; i++) sums[b][i] = Isa::zero();
    }
    HELEXA_UNROLL
    for (int b = 0; b < Ahead; b++) later[b] = upcoming<Ruled>(tile, next, first_block + Blocks + b, blocks);
    const size_t values = key_bytes(tile.head_dim);
    for (int d = 0; d < tile.head_dim; d++) {
        const size_t at = static_cast<size_t>(d) * kBlockTokens * sizeof(uint16_t);  // half a cache line
        HELEXA_UNROLL
        for (int b = 0; b < Ahead; b++) __builtin_prefetch(later[b] + at + (d % 2 == 0 ? 0 : values - 32), 0, 1);
        HELEXA_UNROLL
        for (int b = 0; b < Blocks; b++) {
            const auto key = Isa::from_half(reinterpret_cast<const uint16_t*>(keys[b] + at));
            HELEXA_UNROLL
            for (int i = 0; i < Queries; i++) sums[b][i] = Isa::fma(Isa::set(tile.queries[i][d]), key, sums[b][i]);
        }
    }
    HELEXA_UNROLL
    for (int b = 0; b < Blocks; b++) HELEXA_UNROLL
    for (int i = 0; i < Queries; i++) {
        const auto score = Isa::mul(sums[b][i], Isa::set(tile.scale));
        auto shaped = score;
        if constexpr (Ruled) {
            if (tile.soft_cap > 0.0f) shaped = softly_capped<Isa>(score, tile.soft_cap);
        }
        Isa::store(scores[b][i], Isa::fma(Isa::zero(), score, shaped));
    }
}

// What one query has summed so far.
struct Running {
    float maximum = -__builtin_inff(), total = 0.0f;
    alignas(64) float values[kMaxHeadDim] = {};
};

// What a query sees of a block: positions from .. end - 1.
struct Seen {
    int from, end;
    bool any() const { return from < end; }
    bool whole() const { return from == 0 && end == kBlockTokens; }
};

template <bool Ruled> static inline Seen seen_of(const AttentionTile& tile, int query, int block) {
    const int end = tile.limits[query] - block * kBlockTokens;
    int from = 0;
    if constexpr (Ruled) from = tile.starts[query] > block * kBlockTokens ? tile.starts[query] - block * kBlockTokens : 0;
    return {from, end < kBlockTokens ? end : kBlockTokens};
}

// Folds the scores that are seen into `run` and turns them into weights, 0 for others.
template <class Isa> void fold_scores(Running& run, float* scores, Seen seen, int padded) {
    auto x = Isa::load(scores);
    const auto minus_infinity = Isa::set(-__builtin_inff());
    if (seen.end < kBlockTokens) x = Isa::select(Isa::first(seen.end), x, minus_infinity);
    if (seen.from > 0) x = Isa::select(Isa::first(seen.from), minus_infinity, x);
    const float highest = Isa::reduce_max(x), maximum = highest > run.maximum ? highest : run.maximum;
    const auto weights = exp_not_positive<Isa>(Isa::sub(x, Isa::set(maximum)));
    Isa::store(scores, weights);
    const float sum = Isa::reduce_add(weights);
    if (maximum != run.maximum) {  // otherwise the factor is exactly 1
        const auto factor = exp_not_positive<Isa>(Isa::sub(Isa::set(run.maximum), Isa::set(maximum)));
        float lanes[kLanes];
        Isa::store(lanes, factor);
        run.total = run.total * lanes[0];
        for (int d = 0; d < padded; d += kLanes) Isa::store(run.values + d, Isa::mul(Isa::load(run.values + d), factor));
        run.maximum = maximum;
    }
    run.total = run.total + sum;
}

template <class Isa, int Queries>
void add_values(Running* runs, const uint16_t* values, const float (*weights)[kBlockTokens], Seen seen, int padded) {
    for (int d = 0; d < padded; d += kLanes) {
        typename Isa::F sums[Queries];
        HELEXA_UNROLL
        for (int i = 0; i < Queries; i++) sums[i] = Isa::load(runs[i].values + d);
        for (int t = seen.from; t < seen.end; t++) {
            const auto value = Isa::from_half(values + t * padded + d);
            HELEXA_UNROLL
            for (int i = 0; i < Queries; i++) sums[i] = Isa::fma(Isa::set(weights[i][t]), value, sums[i]);
        }
        HELEXA_UNROLL
        for (int i = 0; i < Queries; i++) Isa::store(runs[i].values + d, sums[i]);
    }
}

template <class Isa, bool Ruled, int Queries>
void fold_block(const AttentionTile& tile, int block, float (*scores)[kBlockTokens], Running* runs) {
    const int padded = padded_head_dim(tile.head_dim);
    const uint16_t* values = reinterpret_cast<const uint16_t*>(block_of(tile, block) + key_bytes(tile.head_dim));
    bool whole = true;
    for (int i = 0; i < Queries; i++) {
        const Seen seen = seen_of<Ruled>(tile, i, block);
        whole = whole && seen.whole();
        if (seen.any()) fold_scores<Isa>(runs[i], scores[i], seen, padded);
    }
    if (whole) return add_values<Isa, Queries>(runs, values, scores, {0, kBlockTokens}, padded);
    for (int i = 0; i < Queries; i++) {
        const Seen seen = seen_of<Ruled>(tile, i, block);
        if (seen.any()) add_values<Isa, 1>(runs + i, values, scores + i, seen, padded);
    }
}

template <class Isa, bool Ruled, int Queries> void attend_queries(const AttentionTile& tile, const AttentionTile* next) {
    constexpr int kTogether = Isa::kScoreBlocks / Queries > 0 ? Isa::kScoreBlocks / Queries : 1;
    Running runs[Queries];
    alignas(64) float scores[kTogether][Queries][kBlockTokens];
    int longest = 0;
    for (int i = 0; i < Queries; i++) longest = tile.limits[i] > longest ? tile.limits[i] : longest;
    const int blocks = (longest + kBlockTokens - 1) / kBlockTokens;
    int block = first_block_of<Ruled>(tile);
    for (; block + kTogether <= blocks; block += kTogether) {
        score_blocks<Isa, Ruled, Queries, kTogether, kTogether>(tile, next, block, blocks, scores);
        for (int b = 0; b < kTogether; b++) fold_block<Isa, Ruled, Queries>(tile, block + b, scores[b], runs);
    }
    for (; block < blocks; block++) {
        score_blocks<Isa, Ruled, Queries, 1, kTogether>(tile, next, block, blocks, scores);
        fold_block<Isa, Ruled, Queries>(tile, block, scores[0], runs);
    }
    for (int i = 0; i < Queries; i++)
        each_lanes(tile.head_dim, [&](int at, int lanes) {
            store_lanes<Isa>(tile.outs[i] + at, Isa::div(Isa::load(runs[i].values + at), Isa::set(runs[i].total)), lanes);
        });
}

template <class Isa, bool Ruled, int Queries = kMaxQueries> void attend(const AttentionTile& tile, const AttentionTile* next) {
    if constexpr (Queries > 1) {
        if (tile.count < Queries) return attend<Isa, Ruled, Queries - 1>(tile, next);
    }
    attend_queries<Isa, Ruled, Queries>(tile, next);
}

}  // namespace helexa
