#include "plinth_text/compiled/kernel.h"

KERNEL void fill_exp(f64_in x, f64_out out) {
    for (int64_t i = 0; i < x.size; i++) out.at[i] = exp(x.at[i]);
}

KERNEL void fill_log(f64_in x, f64_out out) {
    for (int64_t i = 0; i < x.size; i++) out.at[i] = log(x.at[i]);
}

KERNEL void fill_log10(f64_in x, f64_out out) {
    for (int64_t i = 0; i < x.size; i++) out.at[i] = log10(x.at[i]);
}

KERNEL void fill_log1p(f64_in x, f64_out out) {
    for (int64_t i = 0; i < x.size; i++) out.at[i] = log1p(x.at[i]);
}

KERNEL void fill_power(double base, f64_in x, f64_out out) {
    for (int64_t i = 0; i < x.size; i++) out.at[i] = pow(base, x.at[i]);
}
