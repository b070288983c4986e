#include "plinth_text/compiled/kernel.h"

#define COMPONENTS(T, ELEMENT)                                                                                 \
    static ELEMENT root_##T(ELEMENT *parent, ELEMENT node) {                                                   \
        while (parent[node] != node) {                                                                         \
            parent[node] = parent[parent[node]];                                                               \
            node = parent[node];                                                                               \
        }                                                                                                      \
        return node;                                                                                           \
    }                                                                                                          \
                                                                                                               \
    static void unite_in_##T(ELEMENT *parent, u64_in key, u64_in at, uint64_t *last) {                         \
        uint64_t before = last[0], other = last[1];                                                            \
        bool any_before = last[2] > 0;                                                                         \
        for (int64_t i = 0; i < key.size; i++) {                                                               \
            if (any_before && key.at[i] == before) {                                                           \
                ELEMENT a = root_##T(parent, other), b = root_##T(parent, at.at[i]);                           \
                if (a < b)                                                                                     \
                    parent[b] = a;                                                                             \
                else if (b < a)                                                                                \
                    parent[a] = b;                                                                             \
            }                                                                                                  \
            before = key.at[i];                                                                                \
            other = at.at[i];                                                                                  \
            any_before = true;                                                                                 \
        }                                                                                                      \
        last[0] = before;                                                                                      \
        last[1] = other;                                                                                       \
        last[2] = any_before;                                                                                  \
    }                                                                                                          \
                                                                                                               \
    static int64_t cut_in_##T(                                                                                 \
        ELEMENT *parent, int64_t count, ELEMENT *sizes, int64_t limit, ELEMENT alone, i64_out cuts,            \
        int64_t *documents, int64_t *largest                                                                   \
    ) {                                                                                                        \
        for (int64_t node = 0; node < count; node++) { /* a parent is never above its child: one pass finishes */ \
            parent[node] = parent[parent[node]];                                                               \
            sizes[parent[node]]++;                                                                             \
        }                                                                                                      \
        int64_t found = 0, held = 0, total = 0, most = 0;                                                      \
        for (int64_t node = 0; node < count; node++) {                                                         \
            int64_t size = sizes[node];                                                                        \
            if (size < 2) continue;                                                                            \
            if (held > 0 && held + size > limit) {                                                             \
                if (found < cuts.size) cuts.at[found] = node;                                                  \
                found++;                                                                                       \
                held = 0;                                                                                      \
            }                                                                                                  \
            held += size;                                                                                      \
            total += size;                                                                                     \
            most = max_i64(most, size);                                                                        \
        }                                                                                                      \
        for (int64_t node = 0; node < count; node++)                                                           \
            if (sizes[parent[node]] < 2) parent[node] = alone;                                                 \
        *documents = total;                                                                                    \
        *largest = most;                                                                                       \
        return found;                                                                                          \
    }

COMPONENTS(u32, uint32_t)
COMPONENTS(u64, uint64_t)

KERNEL void unite_u32(u32_out parent, u64_in key, u64_in at, u64_out last) {
    unite_in_u32(parent.at, key, at, last.at);
}

KERNEL void unite_u64(u64_out parent, u64_in key, u64_in at, u64_out last) {
    unite_in_u64(parent.at, key, at, last.at);
}

KERNEL int64_t cut_u32(
    u32_out parent, u32_out sizes, int64_t limit, uint64_t alone, i64_out cuts, int64_t *documents, int64_t *largest
) {
    return cut_in_u32(parent.at, parent.size, sizes.at, limit, alone, cuts, documents, largest);
}

KERNEL int64_t cut_u64(
    u64_out parent, u64_out sizes, int64_t limit, uint64_t alone, i64_out cuts, int64_t *documents, int64_t *largest
) {
    return cut_in_u64(parent.at, parent.size, sizes.at, limit, alone, cuts, documents, largest);
}
