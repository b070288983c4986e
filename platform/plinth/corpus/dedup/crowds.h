/* Crowds: groups too large to compare all pairs of. */
#pragma once
#include "plinth_text/words/word_hashes.h"

/* A document of a crowd and its place in the order. */
typedef struct {
    uint64_t place;
    int64_t document;
} Member;

INLINE uint64_t crowd_place(uint64_t id, uint64_t key) { return mix(id ^ key); }

static int by_place(const void *a, const void *b) {
    const Member *left = a, *right = b;
    if (left->place == right->place) return (left->document > right->document) - (left->document < right->document);
    return (left->place > right->place) - (left->place < right->place);
}

/* Documents ordered by a hash of the group's key and their id (NULL: a document's number is its id). The caller frees
   them; NULL without memory. */
static inline Member *order_crowd(const int64_t *documents, int64_t count, uint64_t key, const uint64_t *ids) {
    Member *members = malloc(count * sizeof *members);
    if (members == NULL) return NULL;
    for (int64_t i = 0; i < count; i++) {
        uint64_t id = ids ? ids[documents[i]] : (uint64_t)documents[i];
        members[i] = (Member){crowd_place(id, key), documents[i]};
    }
    qsort(members, count, sizeof *members, by_place);
    return members;
}
