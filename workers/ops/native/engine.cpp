#include "engine.h"

#include <algorithm>
#include <cmath>

#include "dividing.h"
#include "float_mode.h"

namespace helexa {
Engine::Engine(const Kernels& kernels, int threads, int spins)
    : kernels_(kernels),
      pool_(threads, spins),
      scratch_(static_cast<size_t>(threads)),
      row_scratch_(static_cast<size_t>(threads)) {}

// Everything that addresses memory.
const char* Engine::check(const helexa_op* ops, int count, const helexa_inputs& inputs) const {
    bool uses_kv = false;
    for (int i = 0; i < count; i++) {
        if (ops[i].kind == HELEXA_ATTENTION || ops[i].kind == HELEXA_ROPE_KV) {
            uses_kv = true;
            if (ops[i].layer < 0 || ops[i].layer >= kv_.layers || ops[i].kv_heads != kv_.kv_heads ||
                ops[i].head_dim != kv_.head_dim)
                return "the KV cache has another shape than the model";
        }
        if (ops[i].kind != HELEXA_EMBED) continue;
        for (int row = 0; row < inputs.rows; row++)
            if (inputs.token_ids[row] < 0 || inputs.token_ids[row] >= ops[i].linear->outputs)
                return "a token id is outside the vocabulary";
    }
    for (int sequence = 0; sequence < inputs.sequences; sequence++) {
        if (inputs.row_start[sequence] > inputs.row_start[sequence + 1]) return "row_start falls";
        const int32_t* table = row_of(inputs.block_tables, sequence, inputs.table_width);
        const int blocks = (inputs.context_lens[sequence] + kBlockTokens - 1) / kBlockTokens;
        if (inputs.context_lens[sequence] < 0 || blocks > inputs.table_width) return "a context is longer than its block table";
        for (int block = 0; uses_kv && block < blocks; block++)
            if (table[block] < 0 || table[block] >= kv_.blocks) return "a block table names a block that does not exist";
        for (int row = inputs.row_start[sequence]; row < inputs.row_start[sequence + 1]; row++)
            if (inputs.sequence_of_row[row] != sequence || inputs.positions[row] < 0 ||
                inputs.positions[row] >= inputs.context_lens[sequence])
                return "a row lies outside its sequence";
    }
    if (inputs.row_start[0] != 0 || inputs.row_start[inputs.sequences] != inputs.rows) return "row_start does not cover the rows";
    for (int i = 0; i < inputs.logit_rows; i++)
        if (inputs.logit_row_ids[i] < 0 || inputs.logit_row_ids[i] >= inputs.rows)
            return "logit_rows names a row that does not exist";
    return nullptr;
}

const char* Engine::run(const helexa_op* ops, int count, const helexa_inputs& inputs) {
    if (const char* wrong = check(ops, count, inputs)) return wrong;
    if (const char* wrong = check_state(ops, count, inputs)) return wrong;
    const FloatMode mode;
    inputs_ = &inputs;
    left_ = false;
    for (int i = 0; i < count && !left_; i++) run_op(ops[i]);
    return left_ ? "a rank has left the group" : nullptr;
}

// row(i, out) computes an output row; it is then quantised where the op asks for that.
template <class Row> void Engine::each_row_quantised(const helexa_op& op, int cost, const Row& row) {
    each_row(op, cost, [&](int i, int thread) {
        std::vector<float>& scratch = row_scratch_[static_cast<size_t>(thread)];
        if (op.out == nullptr && scratch.size() < static_cast<size_t>(op.width)) scratch.resize(static_cast<size_t>(op.width));
        float* out = op.out != nullptr ? row_of(op.out, i, op.width) : scratch.data();
        row(i, out);
        if (op.quantised_out != nullptr)
            kernels_.quantise(out, op.width, panel_of(op.quantised_out, i, op.width), i % kPanelRows);
    });
}

void Engine::run_op(const helexa_op& op) {
    const int width = op.width;
    switch (op.kind) {
        case HELEXA_EMBED:
            return each_row(op, width, [&](int i, int) {
                kernels_.embed(op.linear->segments[0], width, inputs_->token_ids[i], row_of(op.out, i, width));
            });
        case HELEXA_RMS_NORM:
            return each_row_quantised(op, width, [&](int i, float* out) {
                const float* x = row_of(op.x, i, width);
                if (op.y != nullptr) {
                    kernels_.add(x, row_of(op.y, i, width), width, row_of(op.sum, i, width));
                    x = row_of(op.sum, i, width);
                }
                kernels_.rms_norm(x, op.vector, op.eps, width, out);
            });
        case HELEXA_ADD:
            return each_row_quantised(
                op, width, [&](int i, float* out) { kernels_.add(row_of(op.x, i, width), row_of(op.y, i, width), width, out); });
        case HELEXA_SILU_MUL:
        case HELEXA_GELU_MUL:
            return each_row_quantised(op, 2 * width, [&](int i, float* out) {
                const float* gate = row_of(op.x, i, 2 * width);
                (op.kind == HELEXA_GELU_MUL ? kernels_.gelu_mul : kernels_.silu_mul)(gate, gate + width, width, out);
            });
        case HELEXA_SCALE:
            return each_row(op, width, [&](int i, int) {
                kernels_.scale(row_of(op.x, i, width), op.scale, width, row_of(op.out, i, width));
            });
        case HELEXA_SOFT_CAP:
            return each_row(op, width, [&](int i, int) {
                kernels_.soft_cap(row_of(op.x, i, width), op.soft_cap, width, row_of(op.out, i, width));
            });
        case HELEXA_NORM_HEADS: return norm_heads(op);
        case HELEXA_GATHER:
            return each_row_quantised(op, width, [&](int i, float* out) {
                const float* x = row_of(op.x, inputs_->logit_row_ids[i], width);
                std::copy(x, x + width, out);
            });
        case HELEXA_QUANTISE:
            return each_row(op, width, [&](int i, int) {
                kernels_.quantise(row_of(op.x, i, width), width, panel_of(op.quantised_out, i, width), i % kPanelRows);
            });
        case HELEXA_LINEAR: return linear(op);
        case HELEXA_LINEAR_SILU: return linear_gated(op, kernels_.silu_mul);
        case HELEXA_LINEAR_GELU: return linear_gated(op, kernels_.gelu_mul);
        case HELEXA_MOE: return experts(op);
        case HELEXA_ALL_GATHER: return all_gather(op);
        case HELEXA_EMBED_ACROSS: return embed_across(op);
        case HELEXA_GATHER_LOGITS: return gather_logits(op);
        case HELEXA_ROPE_KV: return rope_kv(op);
        case HELEXA_ATTENTION: return attention(op);
        case HELEXA_CAUSAL_CONV: return causal_conv(op);
        case HELEXA_DELTA_RULE: return delta_rule(op);
        case HELEXA_GDN_GATES:
            return each_row(op, width, [&](int i, int) {
                kernels_.gate_heads(row_of(op.x, i, width), op.vector, op.vector2, width / 2, row_of(op.out, i, width));
            });
        case HELEXA_GATED_NORM:
            return each_row_quantised(op, 3 * width, [&](int i, float* out) {
                const float *x = row_of(op.x, i, width), *gate = row_of(op.y, i, width);
                for (int at = 0; at < width; at += op.head_dim) {
                    kernels_.rms_norm(x + at, op.vector, op.eps, op.head_dim, out + at);
                    kernels_.silu_mul(gate + at, out + at, op.head_dim, out + at);
                }
            });
        case HELEXA_SIGMOID_MUL:
            return each_row_quantised(op, 2 * width, [&](int i, float* out) {
                const bool single = op.heads == 1;
                kernels_.sigmoid_mul(row_of(op.x, i, width), row_of(op.y, i, single ? 1 : width), single, width, out);
            });
        default: return;
    }
}

// Groups first .. last - 1 of a linear's columns for rows 0 .. rows - 1 of x.
void Engine::linear_groups(const helexa_linear& weight, int first, int last, const float* x, const ActivationBlock* quantised,
                           int rows, float* out) const {
    for (int row = 0; row < rows; row += kRowsTogether) {
        int group = 0, column = 0;
        for (int s = 0; s < weight.segment_count; s++) {
            const helexa_segment& segment = weight.segments[s];
            const int from = std::max(first - group, 0), to = std::min(last - group, groups_of(segment));
            if (from < to)
                kernels_.linear(segment, weight.inputs, from, to, x, quantised, row, std::min(row + kRowsTogether, rows),
                                row_of(out, row, weight.outputs) + column + from * kLanes, static_cast<size_t>(weight.outputs));
            group += groups_of(segment);
            column += segment.rows;
        }
    }
}

void Engine::linear(const helexa_op& op) {
    const auto* quantised = static_cast<const ActivationBlock*>(op.quantised_x);
    const int rows = rows_of(op), groups = groups_of(*op.linear), chunks = chunks_for(groups, pool_.threads());
    pool_.run(rows == 0 ? 0 : chunks, [&](int chunk, int) {
        const int first = first_of(chunk, chunks, groups), last = first_of(chunk + 1, chunks, groups);
        linear_groups(*op.linear, first, last, op.x, quantised, rows, op.out);
    });
    if (op.vector != nullptr)
        each_row(op, op.width, [&](int i, int) {
            float* out = row_of(op.out, i, op.width);
            kernels_.add(out, op.vector, op.width, out);
        });
}

// 32 columns of gate and of up are computed, joined and quantised while they are near: neither is ever written out.
void Engine::linear_gated(const helexa_op& op, GatedKernel gated) {
    constexpr int kUnit = kQuantBlock, kGroups = kUnit / kLanes;
    const helexa_linear& weight = *op.linear;
    const auto* quantised = static_cast<const ActivationBlock*>(op.quantised_x);
    const int rows = rows_of(op), units = op.width / kUnit, chunks = chunks_for(units, pool_.threads());
    pool_.run(rows == 0 ? 0 : chunks, [&](int chunk, int) {
        alignas(64) float sides[2][kRowsTogether * kUnit];
        for (int row = 0; row < rows; row += kRowsTogether) {
            const int end = std::min(row + kRowsTogether, rows);
            for (int unit = first_of(chunk, chunks, units); unit < first_of(chunk + 1, chunks, units); unit++) {
                for (int side = 0; side < 2; side++)
                    kernels_.linear(weight.segments[side], weight.inputs, kGroups * unit, kGroups * (unit + 1), op.x, quantised,
                                    row, end, sides[side], kUnit);
                for (int i = row; i < end; i++) {
                    float* gate = row_of(sides[0], i - row, kUnit);
                    float* out = op.out != nullptr ? row_of(op.out, i, op.width) + unit * kUnit : gate;
                    gated(gate, row_of(sides[1], i - row, kUnit), kUnit, out);
                    if (op.quantised_out != nullptr)
                        kernels_.quantise(out, kUnit, panel_of(op.quantised_out, i, op.width) + unit, i % kPanelRows);
                }
            }
        }
    });
}

uint8_t* Engine::kv_head(int layer, int block, int head) const {
    const size_t index = (static_cast<size_t>(layer) * static_cast<size_t>(kv_.blocks) + static_cast<size_t>(block)) *
                             static_cast<size_t>(kv_.kv_heads) +
                         static_cast<size_t>(head);
    return static_cast<uint8_t*>(kv_.data) + index * head_block_bytes(kv_.head_dim);
}

// Each head by itself; values pass through.
void Engine::norm_heads(const helexa_op& op) {
    const int head_dim = op.head_dim, normed = op.heads + op.kv_heads;
    each_row(op, op.width, [&](int i, int) {
        const float* x = row_of(op.x, i, op.width);
        float* out = row_of(op.out, i, op.width);
        for (int head = 0; head < normed; head++) {
            const float* weight = head < op.heads ? op.vector : op.vector2;
            kernels_.rms_norm(x + head * head_dim, weight, op.eps, head_dim, out + head * head_dim);
        }
        if (out != x) std::copy(x + normed * head_dim, x + op.width, out + normed * head_dim);
    });
}

void Engine::rope_kv(const helexa_op& op) {
    const helexa_rope& rope = *op.rope;
    const int head_dim = op.head_dim, columns = (op.heads + 2 * op.kv_heads) * head_dim;
    each_row(op, columns, [&](int i, int) {
        const float* x = row_of(op.x, i, columns);
        const int position = inputs_->positions[i];
        const float *cos = row_of(rope.cos, position, rope.half), *sin = row_of(rope.sin, position, rope.half);
        const bool neox = rope.neox != 0;
        for (int head = 0; head < op.heads; head++)
            kernels_.rotate(x + head * head_dim, cos, sin, rope.half, neox, head_dim,
                            row_of(op.out, i, op.width) + head * head_dim);
        const int32_t* table = row_of(inputs_->block_tables, inputs_->sequence_of_row[i], inputs_->table_width);
        for (int head = 0; head < op.kv_heads; head++) {
            uint8_t* block = kv_head(op.layer, table[position / kBlockTokens], head);
            float key[kMaxHeadDim];
            kernels_.rotate(x + (op.heads + head) * head_dim, cos, sin, rope.half, neox, head_dim, key);
            kernels_.store_key(key, head_dim, position % kBlockTokens, block);
            kernels_.store_value(x + (op.heads + op.kv_heads + head) * head_dim, head_dim, position % kBlockTokens, block);
        }
    });
}

// A tile is a run of rows of one sequence and up to kMaxQueries (row, head) pairs of one KV head.
void Engine::attention(const helexa_op& op) {
    const int head_dim = op.head_dim, group = op.heads / op.kv_heads;
    const int heads_together = std::min(group, kMaxQueries), rows_together = std::max(1, kMaxQueries / group);
    const bool ruled = op.window > 0 || op.soft_cap > 0.0f;
    const auto attend = ruled ? kernels_.attend_ruled : kernels_.attend;
    tiles_.clear();
    for (int sequence = 0; sequence < inputs_->sequences; sequence++) {
        const int end = inputs_->row_start[sequence + 1];
        for (int row = inputs_->row_start[sequence]; row < end; row += rows_together)
            for (int kv = 0; kv < op.kv_heads; kv++)
                for (int head = kv * group; head < (kv + 1) * group; head += heads_together) {
                    AttentionTile tile{};
                    tile.cache = kv_head(op.layer, 0, kv);
                    tile.block_stride = static_cast<size_t>(kv_.kv_heads) * head_block_bytes(head_dim);
                    tile.blocks = row_of(inputs_->block_tables, sequence, inputs_->table_width);
                    tile.head_dim = head_dim;
                    tile.scale = op.scale > 0.0f ? op.scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
                    tile.soft_cap = op.soft_cap;
                    for (int r = row; r < std::min(row + rows_together, end); r++)
                        for (int h = head; h < std::min(head + heads_together, (kv + 1) * group); h++) {
                            tile.queries[tile.count] = row_of(op.x, r, op.width) + h * head_dim;
                            tile.outs[tile.count] = row_of(op.out, r, op.width) + h * head_dim;
                            tile.starts[tile.count] = op.window > 0 ? std::max(0, inputs_->positions[r] + 1 - op.window) : 0;
                            tile.limits[tile.count++] = inputs_->positions[r] + 1;
                        }
                    tiles_.push_back(tile);
                }
    }
    // The last tiles of a prefill see the most positions: they go first, so that none is left over at the end.
    const int items = static_cast<int>(tiles_.size()), chunks = std::min(items, kTileChunksPerThread * pool_.threads());
    pool_.run(chunks, [&](int chunk, int) {
        for (int i = items - first_of(chunk, chunks, items); i-- > items - first_of(chunk + 1, chunks, items);) {
            const bool more = i > items - first_of(chunk + 1, chunks, items);
            attend(tiles_[static_cast<size_t>(i)], more ? &tiles_[static_cast<size_t>(i - 1)] : nullptr);
        }
    });
    if (op.quantised_out != nullptr)
        each_row(op, op.width, [&](int i, int) {
            kernels_.quantise(row_of(op.out, i, op.width), op.width, panel_of(op.quantised_out, i, op.width), i % kPanelRows);
        });
}

void Engine::sample(const float* logits, int rows, int vocab, size_t stride, const helexa_sample_rows& rules, int32_t* ids) {
    const FloatMode mode;
    const int chunks = chunks_for(rows, pool_.threads());
    pool_.run(chunks, [&](int chunk, int thread) {
        for (int row = first_of(chunk, chunks, rows); row < first_of(chunk + 1, chunks, rows); row++) {
            const DrawRule rule{rules.temperature[row], rules.top_p[row], rules.log_min_p[row],
                                rules.top_k[row],       rules.seed[row],  rules.position[row]};
            ids[row] =
                draw(kernels_, logits + static_cast<size_t>(row) * stride, vocab, rule, scratch_[static_cast<size_t>(thread)]);
        }
    });
}

}  // namespace helexa
