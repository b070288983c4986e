/* Search in sorted arrays of hashes. */
#pragma once
#include "plinth_text/compiled/kernel.h"

/* The first position in a sorted array whose value is not below a value. */
static inline int64_t lower_bound(u64_in table, uint64_t value) {
    int64_t low = 0, high = table.size;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        if (table.at[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The position of a value in a sorted array, or -1. */
static inline int64_t position_of(u64_in table, uint64_t value) {
    int64_t low = lower_bound(table, value);
    return low < table.size && table.at[low] == value ? low : -1;
}
