// Which rows go to which expert of a mixture, and the memory in between. See experts.cpp.
#pragma once
#include <cstdint>
#include <vector>

#include "helexa_ops.h"
#include "layout.h"

namespace helexa {

// The slots of one expert that some rows chose: a row's place in its work. They begin at a whole panel, so that quantised rows
// of two experts share none.
struct ExpertRun {
    int expert, first_slot, rows;
};

// Rows by slot, as the experts' linears read them.
struct ExpertRows {
    std::vector<float> floats;
    std::vector<ActivationBlock> quantised;
    bool wants_quantised;
};

// Buffers of a step's largest mixture, kept from one to the next.
struct ExpertScratch {
    std::vector<float> probabilities;  // rows, experts
    std::vector<int32_t> chosen;       // rows, top_k: experts by falling score
    std::vector<float> weights;        // rows, top_k
    std::vector<int32_t> slots;        // rows, top_k
    std::vector<int32_t> row_of_slot;  // -1 where a slot only fills a panel
    std::vector<ExpertRun> runs;       // by rising expert
    ExpertRows inputs{}, hidden{};
    std::vector<float> gate_up, outputs;
};

}  // namespace helexa
