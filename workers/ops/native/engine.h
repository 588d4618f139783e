// Runs step programs: one op after another, each divided over rows, columns or heads for the pool's threads.
#pragma once
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "sampling.h"

namespace helexa {

class Engine {
public:
    Engine(const Kernels& kernels, int threads, int spins);

    void set_kv(const helexa_kv& kv) { kv_ = kv; }
    // Null, or what is wrong with the inputs; then nothing ran.
    const char* run(const helexa_op* ops, int count, const helexa_inputs& inputs);
    void sample(const float* logits, int rows, int vocab, size_t stride, const helexa_sample_rows& rules, int32_t* ids);

private:
    const char* check(const helexa_op* ops, int count, const helexa_inputs& inputs) const;
    void run_op(const helexa_op& op);
    void linear(const helexa_op& op);
    void linear_silu(const helexa_op& op);
    void rope_kv(const helexa_op& op);
    void attention(const helexa_op& op);
    int rows_of(const helexa_op& op) const { return op.on_logit_rows ? inputs_->logit_rows : inputs_->rows; }
    template <class Row> void each_row(const helexa_op& op, int cost, const Row& row);
    template <class Row> void each_row_quantised(const helexa_op& op, int cost, const Row& row);
    uint8_t* kv_head(int layer, int block, int head) const;

    const Kernels& kernels_;
    Pool pool_;
    helexa_kv kv_{};
    const helexa_inputs* inputs_ = nullptr;
    std::vector<DrawScratch> scratch_;             // a thread each
    std::vector<std::vector<float>> row_scratch_;  // a thread each: an output row that nobody reads as floats
    std::vector<AttentionTile> tiles_;
};

}  // namespace helexa
