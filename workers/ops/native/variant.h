// The kernel table of one instruction set; each variant_*.cpp makes one, compiled with that set's flags.
#pragma once
#include "attention.h"
#include "drawing.h"
#include "kernels.h"
#include "linear.h"
#include "recurrent.h"
#include "rows.h"

namespace helexa {

template <class Isa> const Kernels* kernels_of() {
    static const Kernels kernels = {
        Isa::kName,           linear_groups<Isa>,  quantise_row<Isa>,    embed_row<Isa>,
        rms_norm_row<Isa>,    add_row<Isa>,        silu_mul_row<Isa>,    gelu_mul_row<Isa>,
        scale_row<Isa>,       add_scaled_row<Isa>, soft_cap_row<Isa>,    soft_weights_row<Isa>,
        rotate_head<Isa>,     store_key_row<Isa>,  store_value_row<Isa>, attend<Isa, false>,
        attend<Isa, true>,    convolve<Isa>,       gate_heads<Isa>,      delta_rule<Isa>,
        sigmoid_mul_row<Isa>, find_peak<Isa>,      weigh<Isa>,           draw_noisy<Isa>,
    };
    return &kernels;
}

}  // namespace helexa
