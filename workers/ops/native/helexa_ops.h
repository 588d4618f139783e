/* The C interface of the native ops. Plain C: every pointer is owned by the caller and stays valid as long as what uses it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The type of a segment's weights in the model file; packed_weights.h says how each is stored. */
enum helexa_type {
    HELEXA_F32 = 0,
    HELEXA_F16 = 1,
    HELEXA_BF16 = 2,
    HELEXA_Q4_0 = 3,
    HELEXA_Q4_1 = 4,
    HELEXA_Q8_0 = 5,
    HELEXA_Q5_0 = 6,
    HELEXA_Q5_1 = 7,
    HELEXA_Q2_K = 8,
    HELEXA_Q3_K = 9,
    HELEXA_Q4_K = 10,
    HELEXA_Q5_K = 11,
    HELEXA_Q6_K = 12,
    HELEXA_TYPES = 13
};

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

/* Where the columns that this rank holds lie in a row of `width` that all ranks hold together: `count` pieces, side by side here,
 * the i-th of `widths[i]` columns from column `starts[i]` of the whole row. */
typedef struct helexa_pieces {
    int32_t width, count;
    const int32_t* starts;
    const int32_t* widths;
} helexa_pieces;

/* A mixture of experts: linears of gate and up, and of down, one each an expert, all experts of one shape. `normalise`: the
 * weights of the `top_k` that are chosen sum to 1. `hidden`: where each rank holds some columns of what is between the linears,
 * which ones are here; null where all are. */
typedef struct helexa_experts {
    int32_t count, top_k, normalise;
    const helexa_linear* gate_up;
    const helexa_linear* down;
    const helexa_pieces* hidden;
} helexa_experts;

/* What the ranks of a model share, laid out as workers/group.py says: `board` is a line of 64 bytes a rank, `regions` are two of
 * `region_floats` each, `logits` is rank 0's buffer. `spins`: rounds a rank looks at another's line before it sleeps. */
typedef struct helexa_group {
    int32_t rank, ranks, spins;
    void* board;
    float* regions;
    size_t region_floats;
    float* logits;
} helexa_group;

/* The paged KV cache: [layers][blocks][kv_heads][head block], see layout.h. */
typedef struct helexa_kv {
    void* data;
    int32_t layers, blocks, kv_heads, head_dim;
} helexa_kv;

/* What recurrent layers hold, [slots][layers][layer], see layout.h. `tiled`: value head h reads key head h % key_heads, else
 * h / (value_heads / key_heads). */
typedef struct helexa_state {
    void* data;
    int32_t slots, layers, key_heads, value_heads, key_dim, value_dim, kernel, tiled;
} helexa_state;

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
    const int32_t* state_slots; /* one a sequence; null where nothing is recurrent */
} helexa_inputs;

enum helexa_op_kind {
    HELEXA_EMBED = 0,        /* out = rows of `linear` at the token ids */
    HELEXA_RMS_NORM = 1,     /* out = norm(x) * vector; where y is given, sum = x + y first and out = norm(sum) * vector */
    HELEXA_ADD = 2,          /* out = x + y */
    HELEXA_LINEAR = 3,       /* out = x @ linear.T, from `x` for float segments and from `quantised_x` for quantised ones,
                                + `vector` where that is given */
    HELEXA_ROPE_KV = 4,      /* rotates x, writes keys and values of `layer`, out = the queries */
    HELEXA_ATTENTION = 5,    /* out = attention of the queries x, over the last `window` positions (0: all), scores times `scale`
                                (0: 1 / sqrt(head_dim)), then softly capped at `soft_cap` (0: not) */
    HELEXA_SILU_MUL = 6,     /* out = silu(gate) * up, x = gate then up */
    HELEXA_GATHER = 7,       /* out = the rows of x that want logits */
    HELEXA_QUANTISE = 8,     /* quantised_out = x */
    HELEXA_LINEAR_SILU = 9,  /* a linear of two equal segments, gate and up, with silu_mul behind it */
    HELEXA_GELU_MUL = 10,    /* out = gelu(gate) * up, x = gate then up */
    HELEXA_LINEAR_GELU = 11, /* a linear of two equal segments, gate and up, with gelu_mul behind it */
    HELEXA_SCALE = 12,       /* out = scale * x */
    HELEXA_SOFT_CAP = 13,    /* out = soft_cap * tanh(x / soft_cap) */
    HELEXA_NORM_HEADS = 14,  /* out = x with each query head normed by `vector`, each key head by `vector2` */
    HELEXA_MOE = 15,         /* out = the weighted sum of the experts that a row's scores y choose, each of x */

    /* Between ranks. Each of these meets all of them. */
    HELEXA_ALL_GATHER = 16,    /* out = the whole rows of which each rank has `pieces` in its x */
    HELEXA_EMBED_ACROSS = 17,  /* as embed, where `linear` holds rows from token id `first_id` on, and other ranks hold the others */
    HELEXA_GATHER_LOGITS = 18, /* rank 0's buffer = the whole rows, as in all_gather; out = that, on rank 0 alone */

    /* Of recurrent layers. A sequence whose first row is position 0 starts from zeros. */
    HELEXA_CAUSAL_CONV = 32, /* out = silu(causal depthwise convolution of x with vector), and moves the layer's state on */
    HELEXA_GDN_GATES = 33,   /* x holds b then a of each head: out = sigmoid(b), then vector * softplus(a + vector2) */
    HELEXA_DELTA_RULE = 34,  /* out = what the delta rule reads, x = queries, keys, values, y = gates; moves the state on */
    HELEXA_GATED_NORM = 35,  /* out = norm(x) * vector * silu(y), by heads of head_dim columns */
    HELEXA_SIGMOID_MUL = 36  /* out = x * sigmoid(y), y as wide as x or, where heads is 1, a column */
};

/* One op of a step program. `width` is the columns of its output. Scale, soft_cap and norm_heads may work in place. Any op but a
 * linear or an embedding may also quantise its output; then `out` may be null if nothing reads it as floats. A fused linear's
 * segments are multiples of 32 wide. */
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
    const float* vector2;
    const helexa_linear* linear;
    const helexa_rope* rope;
    float scale, soft_cap;
    int32_t window;
    const helexa_experts* experts;
    const helexa_pieces* pieces;
    int32_t first_id;
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
void helexa_engine_set_state(helexa_engine* engine, const helexa_state* state);
/* The ranks that ops between ranks meet from now on; null: there are none. */
void helexa_engine_set_group(helexa_engine* engine, const helexa_group* group);

/* Bytes of a packed segment, 0 for a type or shape that cannot be packed. */
size_t helexa_packed_bytes(int32_t type, int32_t rows, int32_t columns);
/* Packs rows of a model file (the GGUF layout of `type`) for the engine. */
void helexa_pack(int32_t type, int32_t rows, int32_t columns, const void* source, void* packed);
/* Quantises `count` weights of a float type to blocks of `to`, as helexa/formats/quantise.py defines them. 0 where a value is not
 * finite or too large, or where there is no such quantiser. */
int32_t helexa_quantise_weights(int32_t from, int32_t to, size_t count, const void* source, void* blocks);
/* Bytes of `rows` rows of quantised activations. */
size_t helexa_quantised_bytes(int32_t rows, int32_t columns);
size_t helexa_kv_block_bytes(int32_t kv_heads, int32_t head_dim);
/* Bytes of one slot of recurrent state. */
size_t helexa_state_bytes(const helexa_state* state);

/* Runs ops in order. Null, or what is wrong with the inputs, and then nothing ran; or that a rank left the group on the way. */
const char* helexa_run(helexa_engine* engine, const helexa_op* ops, int32_t count, const helexa_inputs* inputs);

/* Draws a token for each of `rows` rows of logits; -1 where a row has a NaN, +infinity or no finite value. */
void helexa_sample(helexa_engine* engine, const float* logits, int32_t rows, int32_t vocab, size_t row_stride,
                   const helexa_sample_rows* rules, int32_t* ids);

#ifdef __cplusplus
}
#endif
