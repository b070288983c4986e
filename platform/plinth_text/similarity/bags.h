/* Bags of words as short vectors of whole numbers. */
#pragma once
#include "plinth_text/compiled/kernel.h"

/* The cosine of two quantized vectors in FP32, from sums of whole numbers; 0 where it is none or negative.

   It is a millionth too high, so that what rounding took from it keeps nothing below a threshold. */
INLINE float bag_cosine(const int16_t *x, const int16_t *y, int64_t size) {
    int64_t product = 0, left = 0, right = 0;
    for (int64_t i = 0; i < size; i++) {
        int64_t p = x[i], q = y[i];
        product += p * q;
        left += p * p;
        right += q * q;
    }
    if (product <= 0) return 0;
    return (float)((double)product / sqrt((double)left * (double)right) + 1e-6);
}
