#include "plinth_text/compiled/kernel.h"

/* The root of a node, or the first node below `low` on the way there. `last` is the last node of the range on the way,
   counted from `low`, or -1. */
static uint64_t climb(uint64_t *parent, uint64_t low, uint64_t node, int64_t *last) {
    *last = -1;
    while (node >= low) {
        *last = node - low;
        uint64_t above = parent[node - low];
        if (above == node) break;
        if (above >= low) above = parent[node - low] = parent[above - low];
        node = above;
    }
    return node;
}

KERNEL int64_t join_edges(u64_out parent, uint64_t low, u64_in node, u64_in other, u64_out hooked, u64_out target) {
    int64_t count = 0;
    for (int64_t i = 0; i < node.size; i++) {
        int64_t last, other_last;
        uint64_t root = climb(parent.at, low, node.at[i], &last);
        uint64_t other_root = climb(parent.at, low, other.at[i], &other_last);
        if (root == other_root) continue;
        if (root < other_root) {
            uint64_t larger = other_root;
            other_root = root;
            root = larger;
            last = other_last;
        }
        if (last >= 0) parent.at[last] = other_root;
        if (root < low) {
            hooked.at[count] = root;
            target.at[count++] = other_root;
        }
    }
    return count;
}

KERNEL void point_to_roots(u64_out parent, uint64_t low) {
    for (int64_t node = 0; node < parent.size; node++) { /* no parent is above its child: one pass finishes */
        uint64_t above = parent.at[node];
        if (above >= low) parent.at[node] = parent.at[above - low];
    }
}
