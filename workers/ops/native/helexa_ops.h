/* The C interface of the native ops. Plain C: every pointer is owned by the caller and stays valid as long as what uses it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a packed segment's weights are stored. */
enum helexa_type { HELEXA_F32 = 0, HELEXA_F16 = 1, HELEXA_BF16 = 2, HELEXA_Q4_0 = 3, HELEXA_Q4_1 = 4, HELEXA_Q8_0 = 5 };

/* One part of a linear: `rows` outputs, packed in groups of 16. */
typedef struct helexa_segment {
    int32_t type;
    int32_t rows;
    const void* data; /* 64-byte aligned, helexa_packed_bytes long */
} helexa_segment;

/* A linear's weight: segments whose outputs lie side by side. `inputs` is K. */
typedef struct helexa_linear {
    int32_t inputs;
    int32_t outputs;
    int32_t segment_count;
    const helexa_segment* segments;
} helexa_linear;

/* cos and sin by position, [positions][half]. */
typedef struct helexa_rope {
    int32_t half;
    int32_t neox;
    int32_t positions;
    const float* cos;
    const float* sin;
} helexa_rope;

/* The paged KV cache: [layers][blocks][kv_heads][head block], see layout.h. */
typedef struct helexa_kv {
    void* data;
    int32_t layers, blocks, kv_heads, head_dim;
} helexa_kv;

/* A step's arrays, as StepInputs in workers/inputs.py. */
typedef struct helexa_inputs {
    int32_t rows, sequences, table_width, logit_rows;
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* sequence_of_row;
    const int32_t* row_start;
    const int32_t* context_lens;
    const int32_t* block_tables;
    const int32_t* logit_row_ids;
} helexa_inputs;

enum helexa_op_kind {
    HELEXA_EMBED = 0,      /* out = rows of `linear` at the token ids */
    HELEXA_RMS_NORM = 1,   /* out = norm(x) * vector; where y is given, sum = x + y first and out = norm(sum) * vector */
    HELEXA_ADD = 2,        /* out = x + y */
    HELEXA_LINEAR = 3,     /* out = x @ linear.T, from `x` for float segments and from `quantised_x` for quantised ones */
    HELEXA_ROPE_KV = 4,    /* rotates x, writes keys and values of `layer`, out = the queries */
    HELEXA_ATTENTION = 5,  /* out = attention of the queries x */
    HELEXA_SILU_MUL = 6,   /* out = silu(gate) * up, x = gate then up */
    HELEXA_GATHER = 7,     /* out = the rows of x that want logits */
    HELEXA_QUANTISE = 8,   /* quantised_out = x */
    HELEXA_LINEAR_SILU = 9 /* a linear of two equal segments, gate and up, with silu_mul behind it */
};

/* One op of a step program. `width` is the columns of its output. Any op but a linear, embed or gather may also quantise
 * its output; then `out` may be null if nothing reads it as floats. A fused linear's segments are multiples of 32 wide. */
typedef struct helexa_op {
    int32_t kind;
    int32_t on_logit_rows; /* 1: R rows, 0: N rows */
    int32_t width;
    int32_t layer, heads, kv_heads, head_dim;
    float eps;
    const float* x;
    const float* y;
    float* sum;
    float* out;
    const void* quantised_x;
    void* quantised_out;
    const float* vector;
    const helexa_linear* linear;
    const helexa_rope* rope;
} helexa_op;

typedef struct helexa_sample_rows {
    const float* temperature;
    const int32_t* top_k;
    const float* top_p;
    const float* log_min_p;
    const uint64_t* seed;
    const int32_t* position;
} helexa_sample_rows;

typedef struct helexa_engine helexa_engine;

/* SHA-256 of the sources this library was built from. */
const char* helexa_source_hash(void);

/* Names of the instruction sets this machine can run, best first; null past the last. */
const char* helexa_isa_name(int32_t index);

/* An engine has its threads, its KV cache and nothing else. Null where `isa` cannot run here or a thread cannot start. */
helexa_engine* helexa_engine_new(const char* isa, int32_t threads, int32_t spins);
void helexa_engine_free(helexa_engine* engine);
void helexa_engine_set_kv(helexa_engine* engine, const helexa_kv* kv);

/* Bytes of a packed segment, 0 for a type or shape that cannot be packed. */
size_t helexa_packed_bytes(int32_t type, int32_t rows, int32_t columns);
/* Packs rows of a model file (the GGUF layout of `type`) for the engine. */
void helexa_pack(int32_t type, int32_t rows, int32_t columns, const void* source, void* packed);
/* Bytes of `rows` rows of quantised activations. */
size_t helexa_quantised_bytes(int32_t rows, int32_t columns);
size_t helexa_kv_block_bytes(int32_t kv_heads, int32_t head_dim);

/* Runs ops in order. Null, or what is wrong with the inputs; then nothing ran. */
const char* helexa_run(helexa_engine* engine, const helexa_op* ops, int32_t count, const helexa_inputs* inputs);

/* Draws a token for each of `rows` rows of logits; -1 where a row has a NaN, +infinity or no finite value. */
void helexa_sample(helexa_engine* engine, const float* logits, int32_t rows, int32_t vocab, size_t row_stride,
                   const helexa_sample_rows* rules, int32_t* ids);

#ifdef __cplusplus
}
#endif
