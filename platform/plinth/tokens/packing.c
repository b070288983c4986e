#include "plinth_text/compiled/kernel.h"

/* Start (context included) and size of the items to pack; returns how many. `full`: pieces that fill a sequence. */
KERNEL int64_t items(
    i64_in starts, i64_in lengths, int64_t capacity, i64_out item_starts, i32_out sizes, int64_t *full
) {
    int64_t found = 0, whole = 0;
    for (int64_t i = 0; i < lengths.size; i++) {
        int64_t length = lengths.at[i], rest = length > capacity ? length % capacity : length, start = starts.at[i];
        if (length > capacity) {
            whole += length / capacity;
            if (!rest) continue;
            start += length - rest - 1;
            rest++;
        }
        if (!rest) continue;
        item_starts.at[found] = start;
        sizes.at[found++] = rest;
    }
    *full = whole;
    return found;
}

/* Numbers of the items, largest first, equal ones in order: a counting sort. `places` are capacity + 2 zeros. */
static void sort_by_size(i32_in sizes, int64_t capacity, int64_t *places, int64_t *order) {
    for (int64_t i = 0; i < sizes.size; i++) places[capacity - sizes.at[i] + 1]++;
    for (int64_t i = 1; i < capacity + 2; i++) places[i] += places[i - 1];
    for (int64_t i = 0; i < sizes.size; i++) order[places[capacity - sizes.at[i]]++] = i;
}

/* The least space of at least `size` that some bin has, or 0. `held`, by node: a bin has any of the spaces below it. */
static int64_t least_space(const bool *held, int64_t leaves, int64_t size) {
    int64_t node = leaves + size;
    if (held[node]) return size;
    for (; node > 1; node /= 2) {
        if (node % 2 || !held[node + 1]) continue;
        node++;
        while (node < leaves) {
            node *= 2;
            if (!held[node]) node++;
        }
        return node - leaves;
    }
    return 0;
}

static void set_space(bool *held, int64_t node) {
    for (; node && !held[node]; node /= 2) held[node] = true;
}

static void clear_space(bool *held, int64_t node) {
    held[node] = false;
    for (node /= 2; node && !(held[2 * node] || held[2 * node + 1]); node /= 2) held[node] = false;
}

/* The bin of every item; returns how many were opened. Among bins with equal space the youngest is filled.

   `leaves` is a power of two above `capacity`; `held` are 2 * leaves of False; `head` (the youngest bin that has a
   space) is -1 for each of capacity + 1; `older`, `order`: one per item; `places`: capacity + 2 zeros. */
KERNEL int64_t best_fit(
    i32_in sizes, int64_t capacity, int64_t leaves, bool_out held, i64_out head, i64_out older, i64_out order,
    i64_out places, i64_out bins
) {
    int64_t opened = 0;
    sort_by_size(sizes, capacity, places.at, order.at);
    for (int64_t i = 0; i < sizes.size; i++) {
        int64_t item = order.at[i], size = sizes.at[item], space = least_space(held.at, leaves, size), own;
        if (!space) {
            own = opened++;
            space = capacity;
        } else {
            own = head.at[space];
            head.at[space] = older.at[own];
            if (head.at[space] < 0) clear_space(held.at, leaves + space);
        }
        bins.at[item] = own;
        int64_t left = space - size;
        if (!left) continue;
        older.at[own] = head.at[left];
        set_space(held.at, leaves + left);
        head.at[left] = own;
    }
    return opened;
}

/* The columns of `PackedPieces`. `offsets` are full + opened + 1 zeros, `context` zeros; `free`: one per bin. */
KERNEL void columns(
    i64_in starts, i64_in lengths, i64_in item_starts, i32_in sizes, i64_in bins, int64_t opened, int64_t full,
    int64_t capacity, i32_out free_places, i32_out offsets, i64_out begins, i32_out tokens, i8_out context
) {
    for (int64_t i = 0; i < full; i++) offsets.at[i + 1] = i + 1;
    for (int64_t i = 0; i < bins.size; i++) offsets.at[full + bins.at[i] + 1]++;
    for (int64_t i = full; i < full + opened; i++) offsets.at[i + 1] += offsets.at[i];
    memcpy(free_places.at, offsets.at + full, opened * sizeof *free_places.at);
    int64_t alone = 0, item = 0;
    for (int64_t i = 0; i < lengths.size; i++) {
        int64_t length = lengths.at[i];
        bool cut = length > capacity;
        for (int64_t number = 0; number < (cut ? length / capacity : 0); number++, alone++) {
            bool follows = number > 0;
            begins.at[alone] = starts.at[i] + number * capacity - follows;
            tokens.at[alone] = capacity + follows;
            context.at[alone] = follows;
        }
        if (cut ? length % capacity : length) {
            int32_t at = free_places.at[bins.at[item]]++;
            begins.at[at] = item_starts.at[item];
            tokens.at[at] = sizes.at[item++];
            context.at[at] = cut;
        }
    }
}
