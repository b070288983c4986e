#include "plinth_text/english/tables.h"

KERNEL uint64_t unit_hash(i32_in points, int64_t low, int64_t high) { return points_hash(points.at, low, high); }

KERNEL uint64_t run_hash(u8_in data, int64_t start, int64_t end) { return bytes_hash(data, start, end); }

KERNEL uint64_t ends_hash(u8_in data, int64_t start, int64_t end) { return hash_of_ends(data.at, start, end); }

KERNEL int64_t find(u64_in tables, int64_t base, int64_t bits, uint64_t value) {
    return find_slot(tables.at, base, bits, value);
}
