// Drawing a token from a row of logits; the definition is workers/ops/sampling.py.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels.h"

namespace helexa {

struct DrawRule {
    float temperature, top_p, log_min_p;  // log_min_p is -infinity when off
    int32_t top_k;
    uint64_t seed;
    int32_t position;
};

// Memory for the filters, one a thread; grows with the vocabulary.
struct DrawScratch {
    std::vector<float> scaled, weights;
    std::vector<int32_t> buckets;
    std::vector<std::pair<float, int32_t>> candidates;
};

// The token id, or -1 where the row has a NaN, +infinity or no finite value.
int32_t draw(const Kernels& kernels, const float* logits, int vocab, const DrawRule& rule, DrawScratch& scratch);

}  // namespace helexa
