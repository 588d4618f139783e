// The C interface over the engine; the choice of instruction set.
#include <cstring>
#include <exception>

#include "engine.h"
#include "helexa_ops.h"
#include "packing.h"
#include "quantising.h"

#ifndef HELEXA_SOURCE_HASH
#define HELEXA_SOURCE_HASH "unknown"
#endif

#define HELEXA_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Choice {
    const helexa::Kernels* kernels;
    bool runs_here;
};

bool has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

bool has_avx512_vnni() {
#if defined(__x86_64__)
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

// Best first.
const helexa::Kernels* kernels_at(int index) {
    const Choice choices[] = {
        {helexa::avx512_kernels(), has_avx512_vnni()}, {helexa::avx2_kernels(), has_avx2()}, {helexa::portable_kernels(), true}};
    for (const Choice& choice : choices)
        if (choice.kernels != nullptr && choice.runs_here && index-- == 0) return choice.kernels;
    return nullptr;
}

}  // namespace

struct helexa_engine {
    helexa::Engine engine;
};

HELEXA_EXPORT const char* helexa_source_hash(void) { return HELEXA_SOURCE_HASH; }

HELEXA_EXPORT const char* helexa_isa_name(int32_t index) {
    const helexa::Kernels* kernels = kernels_at(index);
    return kernels != nullptr ? kernels->name : nullptr;
}

HELEXA_EXPORT helexa_engine* helexa_engine_new(const char* isa, int32_t threads, int32_t spins) {
    for (int index = 0; const helexa::Kernels* kernels = kernels_at(index); index++) {
        if (std::strcmp(kernels->name, isa) != 0) continue;
        try {
            return new helexa_engine{{*kernels, threads, spins}};
        } catch (const std::exception&) {
            return nullptr;
        }
    }
    return nullptr;
}

HELEXA_EXPORT void helexa_engine_free(helexa_engine* engine) { delete engine; }

HELEXA_EXPORT void helexa_engine_set_kv(helexa_engine* engine, const helexa_kv* kv) { engine->engine.set_kv(*kv); }

HELEXA_EXPORT void helexa_engine_set_state(helexa_engine* engine, const helexa_state* state) { engine->engine.set_state(*state); }

HELEXA_EXPORT void helexa_engine_set_group(helexa_engine* engine, const helexa_group* group) {
    engine->engine.set_group(group != nullptr ? *group : helexa_group{});
}

HELEXA_EXPORT size_t helexa_packed_bytes(int32_t type, int32_t rows, int32_t columns) {
    return helexa::packed_bytes(type, rows, columns);
}

HELEXA_EXPORT void helexa_pack(int32_t type, int32_t rows, int32_t columns, const void* source, void* packed) {
    helexa::pack(type, rows, columns, source, packed);
}

HELEXA_EXPORT int32_t helexa_quantise_weights(int32_t from, int32_t to, size_t count, const void* source, void* blocks) {
    return helexa::quantise_weights(from, to, count, source, blocks) ? 1 : 0;
}

HELEXA_EXPORT size_t helexa_quantised_bytes(int32_t rows, int32_t columns) {
    const size_t panels = (static_cast<size_t>(rows) + helexa::kPanelRows - 1) / helexa::kPanelRows;
    return panels * static_cast<size_t>(columns / helexa::kQuantBlock) * sizeof(helexa::ActivationBlock);
}

HELEXA_EXPORT size_t helexa_kv_block_bytes(int32_t kv_heads, int32_t head_dim) {
    return static_cast<size_t>(kv_heads) * helexa::head_block_bytes(head_dim);
}

HELEXA_EXPORT size_t helexa_state_bytes(const helexa_state* state) {
    return sizeof(float) * static_cast<size_t>(state->layers) * helexa::layer_state_floats(*state);
}

HELEXA_EXPORT const char* helexa_run(helexa_engine* engine, const helexa_op* ops, int32_t count, const helexa_inputs* inputs) {
    return engine->engine.run(ops, count, *inputs);
}

HELEXA_EXPORT void helexa_sample(helexa_engine* engine, const float* logits, int32_t rows, int32_t vocab, size_t row_stride,
                                 const helexa_sample_rows* rules, int32_t* ids) {
    engine->engine.sample(logits, rows, vocab, row_stride, *rules, ids);
}
