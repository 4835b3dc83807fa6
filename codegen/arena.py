"""The arena: C text of the memory that recursion, data and arrays of unknown size are cut from, at run time."""

from __future__ import annotations

from .cfunction import OUT_OF_MEMORY

DEEP = "the recursion is too deep for the stack"

# What a C user of a model with an arena sees.
ARENA_HEADER = """#ifndef HYAD_ARENA
#define HYAD_ARENA
#include <stdlib.h>
/* Memory of calls. `hyad_arena arena = {0};`, then any number of calls, one at a time, then `hyad_free(&arena);`,
 * which ends the data that they gave, too. A call takes again what the one before has left: only the first ones
 * allocate. Threads have one each. `hyad_held(&arena)`: the bytes that it has from malloc.
 * stack: the bytes of the stack that recursion may take; 0: HYAD_STACK. */
typedef struct hyad_block { struct hyad_block *before, *after; size_t size, padding; } hyad_block;
typedef struct {
    hyad_block *blocks, *spare; /* in use, the newest first; to be used again */
    char *next, *end;           /* what is free of the newest chunk */
    size_t chunk, stack, floor; /* the next chunk's size; for recursion, and the address where it ends */
    void *failed;
    int status;
} hyad_arena;
static inline void hyad_free(hyad_arena *arena)
{
    for (hyad_block *b = arena->blocks, *before; b; b = before) before = b->before, free(b);
    for (hyad_block *b = arena->spare, *before; b; b = before) before = b->before, free(b);
    arena->blocks = arena->spare = NULL;
    arena->next = arena->end = NULL;
}
static inline size_t hyad_held(const hyad_arena *arena)
{
    size_t held = 0;
    for (const hyad_block *b = arena->blocks; b; b = b->before) held += sizeof *b + b->size;
    for (const hyad_block *b = arena->spare; b; b = b->before) held += sizeof *b + b->size;
    return held;
}
#endif
"""
ARENA_FAIL = """
#ifndef HYAD_STACK
#define HYAD_STACK (4 << 20) /* bytes of the stack that recursion may take */
#endif

/* What seldom runs stays out of what calls it, which is small enough to be inlined then, into itself too. */
#ifdef __GNUC__
#define HYAD_SELDOM static __attribute__((noinline, cold))
#else
#define HYAD_SELDOM static
#endif

HYAD_SELDOM void hyad_fail(hyad_arena *arena, int status)
{
    arena->status = status;
    longjmp(*(jmp_buf *)arena->failed, 1);
}
"""
ARENA_BASE = """
typedef struct { hyad_block *blocks; char *next, *end; } hyad_mark;

/* Takes back what was given since the mark, to be used again. */
static void hyad_release(hyad_arena *arena, hyad_mark mark)
{
    while (arena->blocks != mark.blocks) {
        hyad_block *b = arena->blocks;
        arena->blocks = b->before;
        b->before = arena->spare;
        arena->spare = b;
    }
    arena->next = mark.next;
    arena->end = mark.end;
}

static hyad_block *hyad_enter(hyad_arena *arena, hyad_block *b)
{
    b->before = arena->blocks;
    b->after = NULL;
    if (arena->blocks) arena->blocks->after = b;
    return arena->blocks = b;
}

/* A block of its own: the spare one that fits best, or (large) the largest, else a new one with room. */
static hyad_block *hyad_get(hyad_arena *arena, size_t size, size_t room, int large)
{
    hyad_block **best = NULL, *b;
    for (hyad_block **p = &arena->spare; *p; p = &(*p)->before)
        if ((*p)->size >= size && (!best || ((*p)->size > (*best)->size) == large)) best = p;
    if (best) {
        b = *best;
        *best = b->before;
    } else {
        b = room < (size_t)-1/4 ? (hyad_block *)malloc(sizeof *b + room) : NULL;
        if (!b) hyad_fail(arena, %(memory)d);
        b->size = room;
    }
    return hyad_enter(arena, b);
}

/* Memory for which the chunk has no room: from the next chunk, twice as large. */
HYAD_SELDOM void *hyad_more(hyad_arena *arena, size_t size)
{
    const size_t least = 1 << 14, most = 1 << 26;
    if (size >= least/4) return hyad_get(arena, size, size, 0) + 1;
    hyad_block *b = hyad_get(arena, least, arena->chunk ? arena->chunk : least, 0);
    arena->chunk = b->size < most/2 ? 2*b->size : most;
    arena->next = (char *)(b + 1) + size;
    arena->end = (char *)(b + 1) + b->size;
    return b + 1;
}

static inline void *hyad_alloc(hyad_arena *arena, size_t size)
{
    char *p = arena->next;
    size = (size + 7)/8*8;
    if (size > (size_t)(arena->end - p)) return hyad_more(arena, size);
    arena->next = p + size;
    return p;
}
""" % {"memory": OUT_OF_MEMORY}
ARENA_ARRAY = f"""
static inline void *hyad_room(hyad_arena *arena, double count, size_t size)
{{
    if (!(count*(double)size < 1e18)) hyad_fail(arena, {OUT_OF_MEMORY});
    return count > 0 ? hyad_alloc(arena, (size_t)count*size) : (void *)arena; /* of no elements, but not NULL */
}}
"""
ARENA_COPY = """
static inline const void *hyad_copy(hyad_arena *arena, const void *from, double count, size_t size)
{
    void *to = hyad_room(arena, count, size);
    if (count > 0) memcpy(to, from, (size_t)count*size);
    return to;
}
"""
ARENA_GROW = f"""
/* Room for more elements of an array that has `count` and is full. Large ones are blocks of their own. */
static void *hyad_grow(hyad_arena *arena, void *from, long long count, long long room, size_t size)
{{
    const size_t large = 1 << 16, old = (size_t)count*size, new = (size_t)room*size;
    if ((double)room*(double)size > 1e18) hyad_fail(arena, {OUT_OF_MEMORY});
    if (old < large) {{
        void *to = new < large ? hyad_alloc(arena, new) : hyad_get(arena, new, new, 1) + 1;
        if (old) memcpy(to, from, old);
        return to;
    }}
    hyad_block *b = (hyad_block *)from - 1;
    if (b->size < new) {{
        hyad_block *before = b->before, *after = b->after, *moved = (hyad_block *)realloc(b, sizeof *b + new);
        if (!moved) hyad_fail(arena, {OUT_OF_MEMORY});
        moved->size = new;
        if (before) before->after = moved;
        if (after) after->before = moved;
        else arena->blocks = moved;
        b = moved;
    }}
    return b + 1;
}}
"""
ARENA_NAMES = frozenset(
    "hyad_arena hyad_block hyad_mark hyad_free hyad_held hyad_fail hyad_release hyad_enter hyad_get hyad_more"
    " hyad_alloc hyad_room hyad_copy hyad_grow HYAD_SELDOM arena jmp_buf setjmp longjmp offsetof".split()
)
